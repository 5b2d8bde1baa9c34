// Keeps a job's page fresh: asks for the page again and shows its new main part.
"use strict";

(() => {
  const stale = document.getElementById("stale");
  let last = new Date();

  const say = (text) => {
    stale.textContent = text; // text, never markup
    stale.hidden = text === "";
  };

  const seconds = () => Number(document.querySelector("main").dataset.refresh) || 0;

  const refresh = async () => {
    const answer = await fetch(window.location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (answer.status === 401) {
      say("You are not logged in to Airflow any more: log in, then load this page again.");
      return false;
    }
    if (!answer.ok) {
      throw new Error(`the server answers ${answer.status}`);
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main");
    const old = document.querySelector("main");
    const open = [...old.querySelectorAll("details")].map((one) => one.open);
    [...fresh.querySelectorAll("details")].forEach((one, place) => { one.open = open[place] ?? false; });
    document.title = page.title;
    if (fresh.innerHTML !== old.innerHTML) {
      old.replaceWith(document.adoptNode(fresh));
    }
    last = new Date();
    say("");
    return true;
  };

  const loop = async () => {
    let goesOn = true;
    if (!document.hidden) {
      try {
        goesOn = await refresh();
      } catch (error) {
        say(`This page shows the job as it was at ${last.toLocaleTimeString()}: ${error.message}.`);
      }
    }
    if (goesOn && seconds()) {
      window.setTimeout(loop, seconds() * 1000);
    }
  };

  if (seconds()) {
    window.setTimeout(loop, seconds() * 1000);
  }
})();
