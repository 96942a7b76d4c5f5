"""The benchmark harness: configs to cases, backends, checked and timed records, plots. See docs/method.md."""
