"""Content-addressed storage of adapters, models, game records, snapshots and archives.

A blob is immutable and named by the SHA-256 of its bytes, against which every read is checked. Blobs lie in the
broker's object store, so that a machine needs only the broker's address, or, where ``[blobs]`` of the configuration
names another store, large ones there; each machine keeps a cache folder.

- ``base``    ``BlobStore``, the contract; ``BlobInfo``, an entry of a listing; the base of stores elsewhere
- ``folder``  a store in a folder, and a cache folder in front of any store
- ``broker``  a store on the JetStream object store
- ``bucket``  a store in an S3 bucket
- ``tiered``  small blobs in the broker and large ones elsewhere, as the history configures it
"""

from league.blobs.base import BlobInfo, BlobStore, file_digest
from league.blobs.broker import ARCHIVE_AREA, BLOB_AREA, STATE_AREA, BrokerBlobStore
from league.blobs.bucket import BucketBlobStore
from league.blobs.folder import CachedBlobStore, FolderBlobStore
from league.blobs.tiered import BlobLocations, TieredBlobStore, copy_location, find_locations, open_blobs

__all__ = [
    "ARCHIVE_AREA",
    "BLOB_AREA",
    "STATE_AREA",
    "BlobInfo",
    "BlobLocations",
    "BlobStore",
    "BrokerBlobStore",
    "BucketBlobStore",
    "CachedBlobStore",
    "FolderBlobStore",
    "TieredBlobStore",
    "copy_location",
    "file_digest",
    "find_locations",
    "open_blobs",
]
