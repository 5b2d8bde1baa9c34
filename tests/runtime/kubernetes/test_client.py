"""Which of a connection's fields says where the cluster is."""

from __future__ import annotations

import pytest

from emep.kubernetes.client import Cluster, ConnectionUnusableError, _chosen


def test_one_place_is_taken_as_it_is(tmp_path):
    file = tmp_path / "kubeconfig"
    file.touch()
    for extra in ({"kube_config": "{}"}, {"kube_config_path": str(file)}, {"in_cluster": True}, {}):
        assert _chosen(Cluster(), {**extra, "namespace": "n"}) == {**extra, "namespace": "n"}


def test_the_operators_own_arguments_win(tmp_path):
    both = {"kube_config": "{}", "kube_config_path": "/x", "in_cluster": True, "namespace": "n"}
    for cluster in (Cluster(in_cluster=True), Cluster(config_file=str(tmp_path / "c"))):
        assert _chosen(cluster, both) == {"namespace": "n"}


@pytest.mark.parametrize(
    "extra", [{"kube_config": "{}", "in_cluster": True}, {"kube_config": "{}", "kube_config_path": "{file}"}]
)
def test_two_places_are_refused_by_their_names(extra, tmp_path):
    file = tmp_path / "kubeconfig"
    file.touch()
    given = {
        name: str(value).format(file=file) if value == "{file}" else value for name, value in extra.items()
    }
    with pytest.raises(ConnectionUnusableError) as caught:
        _chosen(Cluster(conn_id="k"), given)
    assert all(name in str(caught.value) for name in extra)
    assert "'k'" in str(caught.value)


def test_empty_fields_say_nothing(tmp_path):
    file = tmp_path / "kubeconfig"
    file.touch()
    extra = {"kube_config": "", "in_cluster": False, "kube_config_path": str(file)}
    assert _chosen(Cluster(), extra) == {"kube_config_path": str(file)}


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConnectionUnusableError, match="/no/such/file"):
        _chosen(Cluster(), {"kube_config_path": "/no/such/file"})
