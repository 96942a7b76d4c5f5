"""A config file that runs in no time: a fake backend as `jfa` and as `fa4`, two tiny cases."""

from pathlib import Path

TEXT = """\
name: {name}
backends:
  - {{backend: "fake_backends:FakeOurs", name: jfa}}
  - {{backend: "fake_backends:FakeRival", name: fa4}}
scopes: [kernel]
timing: {{warmup: 1, min_samples: 30, max_samples: 30, max_seconds: 0.1}}
cases:
  - {{name: one, mode: self, batch: 3, num_heads_q: 1, head_dim: 8, lengths: {{kind: uniform, max: 12}}}}
  - {{name: two, mode: self, batch: 3, num_heads_q: 1, head_dim: 8, seed: 1, lengths: {{kind: uniform, max: 12}}}}
"""


def write(path: Path, name: str = "tiny") -> Path:
    """The config as a file."""
    path.write_text(TEXT.format(name=name))
    return path
