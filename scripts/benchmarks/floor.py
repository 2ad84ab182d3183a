"""Baselines: the time that the machine takes to hash and to write the same bytes."""

import concurrent.futures
import hashlib
import mmap
import os
import time


class Mapped:
    """Files mapped read-only, so that reads from the page cache need no copy."""

    def __init__(self, paths):
        self.maps = {}
        for path in paths:
            with open(path, "rb") as file:
                self.maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def parts(self, extent, step=1 << 22):
        path, offset, length = extent
        with memoryview(self.maps[path]) as view:
            for begin in range(offset, offset + length, step):
                with view[begin : min(begin + step, offset + length)] as part:
                    yield part

    def close(self):
        for mapped in self.maps.values():
            mapped.close()


def hash_seconds(extents, mapped, cores):
    """Returns the seconds to hash every extent, on all cores."""

    def one(extent):
        sha256 = hashlib.sha256()
        for part in mapped.parts(extent):
            sha256.update(part)
        return sha256.digest()

    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        # The longest extents first, so that no core works alone on one at the end.
        list(pool.map(one, sorted(extents, key=lambda extent: -extent[2])))
    return time.perf_counter() - begun


def write_seconds(extents, mapped, target):
    """Returns the seconds to write every extent to one file and sync it."""
    begun = time.perf_counter()
    with open(target, "wb", buffering=0) as out:
        for extent in extents:
            for part in mapped.parts(extent):
                written = 0
                while written < len(part):
                    written += out.write(part[written:])
        os.fsync(out.fileno())
    seconds = time.perf_counter() - begun
    target.unlink()
    return seconds
