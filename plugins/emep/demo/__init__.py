"""The main job on an embedded default: configuration, processes, the run that is followed, the scoreboard."""
