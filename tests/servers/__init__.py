"""Real servers for the tests: each is started on a free port with files of its own, and ended with the run."""
