"""The notebooks run from the top, on a fleet that they simulate themselves."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_they_are_kept_with_what_they_show() -> None:
    assert [p.stem for p in NOTEBOOKS] == ["01_explore", "02_retrain", "03_evaluate"]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        shown = [o for c in cells for o in c.get("outputs", ())]
        assert any("image/png" in o.get("data", {}) for o in shown), path.name
        assert not [o for o in shown if o["output_type"] == "error"], path.name
        assert path.stat().st_size < 500_000, path.name


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed (extra notebooks)")
    monkeypatch.setenv("RIGCANARY_WINDOWS", "1200")
    monkeypatch.setenv("RIGCANARY_EPOCHS", "1")
    spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.execute(path, tmp_path / "out.ipynb")
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    assert all(c["execution_count"] for c in cells if c["cell_type"] == "code")
