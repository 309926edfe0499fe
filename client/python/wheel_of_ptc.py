# SPDX-License-Identifier: Apache-2.0
"""Builds the package's wheel for pip (PEP 517) with nothing but the standard library, so that installing needs no registry."""
import base64
import hashlib
import os
import zipfile

VERSION = "0.1.0"
HERE = os.path.dirname(os.path.abspath(__file__))
INFO = f"ptc-{VERSION}.dist-info"
METADATA = f"""Metadata-Version: 2.1
Name: ptc
Version: {VERSION}
Summary: Training jobs whose parallelism changes while they run: a binding over libptc
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: torch
Requires-Dist: torch>=2.7; extra == "torch"
Description-Content-Type: text/markdown

"""
WHEEL = "Wheel-Version: 1.0\nGenerator: ptc\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _write(directory, files):
    name, record = f"ptc-{VERSION}-py3-none-any.whl", []
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as f:
        files = {**files, f"{INFO}/METADATA": (METADATA + f.read()).encode(), f"{INFO}/WHEEL": WHEEL.encode()}
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in files.items():
            z.writestr(path, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}\n")
        z.writestr(f"{INFO}/RECORD", "".join(record) + f"{INFO}/RECORD,,\n")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = {}
    for name in sorted(os.listdir(os.path.join(HERE, "ptc"))):
        if name.endswith(".py"):
            with open(os.path.join(HERE, "ptc", name), "rb") as f:
                files[f"ptc/{name}"] = f.read()
    return _write(wheel_directory, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, {"ptc.pth": (HERE + "\n").encode()})


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("install from a checkout: pip install ./client/python")
