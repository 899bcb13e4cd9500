"""Adapter folders as bytes that depend on nothing but their content, so that a digest can name them."""

import io
import re
import tarfile
from pathlib import Path, PurePosixPath

from schemas.errors import ModelError
from schemas.files import atomic_folder


def pack_folder(folder: Path) -> bytes:
    """Archive a folder's regular files: an uncompressed tar, names sorted, times, owners and modes fixed.

    Raises:
        ModelError: the folder is missing, is empty, or holds something other than files and folders.
    """
    folder = Path(folder)
    paths = sorted(path for path in folder.rglob("*") if not path.is_dir())
    odd = [path for path in paths if path.is_symlink() or not path.is_file()]
    if odd or not paths:
        problem = f"{odd[0].name} is not a regular file" if odd else "nothing to pack"
        raise ModelError(f"{folder}: {problem}, expected a folder of regular files")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in paths:
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            data = path.read_bytes()
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def unpack_folder(data: bytes, folder: Path) -> None:
    """Write the files of ``pack_folder``'s archive under ``folder``, which is made if missing.

    Raises:
        ModelError: truncated or not an archive, or an entry that is not a plain file under the folder.
    """
    folder = Path(folder)
    if len(data) % tarfile.RECORDSIZE or not data.endswith(bytes(2 * tarfile.BLOCKSIZE)):
        raise ModelError(f"{folder}: the archive of {len(data)} bytes is truncated or is not an adapter archive")
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            files: dict[str, bytes] = {}
            for entry in archive:
                name = PurePosixPath(entry.name)
                stream = archive.extractfile(entry) if entry.isreg() else None
                is_odd = not name.parts or name.is_absolute() or ".." in name.parts or re.search(r"[\\\0]", entry.name)
                if stream is None or is_odd:
                    raise ModelError(f"archive entry {entry.name!r} is not a plain file under the adapter's folder")
                files[entry.name] = stream.read()
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        # The last two: a damaged header may state any size, a negative one too.
        raise ModelError(f"{folder}: not an adapter archive ({error})") from error
    for path, content in files.items():
        try:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise ModelError(f"{folder}: an adapter archive with a file where {path!r} has a folder") from error


def unpack_atomically(data: bytes, folder: Path) -> None:
    """Unpack beside ``folder`` and move it into place atomically; an existing folder is kept."""
    try:
        with atomic_folder(folder) as draft:
            unpack_folder(data, draft)
    except OSError:
        # Another process may have been faster.
        if not folder.exists():
            raise
