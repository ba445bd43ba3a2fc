//! The state of an image that is pushed, as a file.

use crate::error::StoreError;
use crate::layer::BLOCK;
use image::{Image, ImageError, Watch, image_length, metadata_blocks, next_extent, open_copy, trim};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// One state of an image, at rest.
#[derive(Debug)]
pub struct Source {
    file: File,
    size: u64,
    uuid: String,
    /// Blocks that every open reads, ascending. A hint.
    metadata: Vec<Range<u64>>,
}

impl Source {
    /// A state in a file. `uuid`: 32 hexadecimal digits.
    pub fn new(file: File, size: u64, uuid: String) -> Source {
        Source { file, size, uuid, metadata: Vec::new() }
    }

    /// With blocks that every open reads.
    #[cfg(test)]
    pub fn with_metadata(self, metadata: Vec<Range<u64>>) -> Source {
        Source { metadata, ..self }
    }

    /// The state of one moment of an image, which `copy` copies into a file without a name. It is
    /// left clean, and without what freed blocks held: that is neither sent nor shown to others.
    pub fn of_image<E: From<ImageError>>(
        path: &Path,
        watch: Watch<'_>,
        copy: impl FnOnce(&File) -> Result<(), E>,
    ) -> Result<Source, E> {
        let failed = |source| ImageError::File { action: "copy", path: path.to_owned(), source };
        let mut kept = None;
        let image: Image = open_copy(path, |into| {
            kept = Some(into.try_clone());
            copy(into)
        })?;
        image.close()?;
        let file = kept.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).map_err(failed)?;
        let place = format!("/proc/self/fd/{}", file.as_raw_fd());
        match trim(&place, &Default::default(), watch) {
            // Freed blocks are sent, too, if the file system of the copy has no holes.
            Ok(_) | Err(ImageError::NoHoles { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Its place is that of every version.
        let mut uuid = [0; 16];
        file.read_exact_at(&mut uuid, 8).map_err(failed)?;
        let metadata = metadata_blocks(&file, path)?;
        Ok(Source { size: image_length(Path::new(&place))?, file, uuid: crate::head::hex(&uuid), metadata })
    }

    /// Bytes of the image.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// UUID of the image: 32 hexadecimal digits.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Whether every open reads a block.
    pub fn is_metadata(&self, block: u64) -> bool {
        let behind = self.metadata.partition_point(|run| run.end <= block);
        self.metadata.get(behind).is_some_and(|run| run.contains(&block))
    }

    /// An estimate of the bytes that are no holes.
    pub fn used_bytes(&self) -> u64 {
        self.file.metadata().map_or(self.size, |metadata| {
            std::os::unix::fs::MetadataExt::blocks(&metadata).saturating_mul(512).min(self.size)
        })
    }

    /// Reads the image from its beginning.
    pub fn reader(&self) -> Reader<'_> {
        Reader { source: self, at: 0, end: 0, piece: vec![0; PIECE] }
    }
}

/// Reads what is not in holes.
pub struct Reader<'s> {
    source: &'s Source,
    at: u64,
    /// End of the part without holes in which `at` is.
    end: u64,
    piece: Vec<u8>,
}

impl Reader<'_> {
    /// The next blocks, and the number of the first one. Bytes beyond the image's end are zero.
    pub fn next(&mut self) -> Result<Option<(u64, &[u8])>, StoreError> {
        let failed = |source| StoreError::Local { action: "read", path: "the copy of the image".into(), source };
        let size = self.source.size;
        if self.at >= self.end {
            let found = next_extent(&self.source.file, self.at, size).map_err(failed)?;
            let Some(extent) = found else { return Ok(None) };
            // A block counts as a whole.
            (self.at, self.end) = (extent.start - extent.start % BLOCK as u64, extent.end);
        }
        let whole = ((self.end - self.at).min(PIECE as u64) as usize).next_multiple_of(BLOCK);
        let readable = whole.min((size - self.at) as usize);
        self.piece[readable..whole].fill(0);
        self.source.file.read_exact_at(&mut self.piece[..readable], self.at).map_err(failed)?;
        let first = self.at / BLOCK as u64;
        self.at += whole as u64;
        Ok(Some((first, &self.piece[..whole])))
    }
}
