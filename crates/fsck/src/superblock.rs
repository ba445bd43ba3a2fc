//! Checks of the superblock and its copy; refusal of files that are not images.

use crate::check::{Checker, FindingLocation, at};
use crate::finding::{Finding, FindingKind, Repair, Severity};
use crate::image::{Image, Segments, geometry_of, whole_copy};
use engine::format::{FEATURE_FILE_FLAGS, FEATURES_INCOMPAT, FORMAT_VERSION, Geometry, Superblock, SuperblockError};
use pmem::{BLOCK_BYTES, Memory, Region};

/// The image in a region. If the superblock's description is damaged, its copy is used and a
/// finding is returned too.
#[allow(clippy::type_complexity)]
pub(crate) fn open<M: Memory>(region: &Region<M>) -> Result<(Image<'_, M>, &Superblock, Option<Finding>), Finding> {
    let segments = Segments::default();
    let error = match Superblock::check(region, false) {
        Ok(geometry) => {
            let superblock = region.first::<Superblock>().map_err(|_| refusal(SuperblockError::NotAnImage))?;
            return Ok((Image { region, geometry, segments }, superblock, None));
        }
        Err(error) => error,
    };
    let finding = refusal(error);
    // Without a magic nothing can be restored: an interrupted mkfs leaves the copy of the previous
    // image.
    let damaged = matches!(error, SuperblockError::Checksum { .. });
    let (Some(geometry), Ok(superblock), true) = (geometry_of_copy(region), region.first::<Superblock>(), damaged)
    else {
        return Err(finding);
    };
    let finding = Finding { repair: Repair::RestoreSuperblock { copy: geometry.copy_block() }, ..finding };
    Ok((Image { region, geometry, segments }, superblock, Some(finding)))
}

/// The geometry in the copy, if it verifies. The copy is in the image's last block. That is the
/// region's last block unless the file was lengthened; else the block given by the damaged
/// superblock's length, if that word is intact; else any block.
fn geometry_of_copy<M: Memory>(region: &Region<M>) -> Option<Geometry> {
    let last = (region.length() / BLOCK_BYTES).checked_sub(1)?;
    let said = region.first::<Superblock>().ok()?.length.load() / BLOCK_BYTES;
    let likely = [last, said.wrapping_sub(1).min(last)];
    likely.into_iter().chain((1..last).rev()).find_map(|block| geometry_of_copy_in(region, block))
}

/// The geometry of the copy in a block, if it verifies and is at its place.
fn geometry_of_copy_in<M: Memory>(region: &Region<M>, block: u64) -> Option<Geometry> {
    let copy = whole_copy(region, block)?;
    let known = copy.version.load() == FORMAT_VERSION && copy.features_incompat.load() & !FEATURES_INCOMPAT == 0;
    let geometry = geometry_of(copy)?;
    (known && geometry.copy_block() == block).then_some(geometry)
}

fn refusal(error: SuperblockError) -> Finding {
    let kind = match error {
        SuperblockError::TooShort { .. } => FindingKind::ImageTooShort,
        SuperblockError::NotAnImage => FindingKind::NotAnImage,
        SuperblockError::Version { .. } => FindingKind::UnknownVersion,
        SuperblockError::Features { .. } => FindingKind::UnknownFeatures,
        SuperblockError::Checksum { .. } => FindingKind::SuperblockChecksum,
        SuperblockError::Truncated { .. } => FindingKind::ImageTruncated,
        SuperblockError::Geometry => FindingKind::SuperblockGeometry,
    };
    Finding {
        kind,
        severity: Severity::Error,
        inode: None,
        path: None,
        offset: Some(0),
        sentence: error.to_string(),
        repair: Repair::None,
    }
}

impl<M: Memory> Checker<'_, M> {
    /// Checks the superblock's fields outside its description, and the copy. `damage`: the finding
    /// about a damaged description.
    pub fn check_superblock(&mut self, superblock: &Superblock, damage: Option<Finding>) {
        let pm = self.image.region;
        let is_whole = damage.is_none();
        if let Some(damage) = damage {
            self.report.add(damage, self.options.findings_max);
        }
        let reserved = [
            (pm.offset_of(&superblock.reserved), 5),
            (pm.offset_of(&superblock.reserved_before_state), 31),
            (pm.offset_of(&superblock.reserved_state), 7),
            (pm.offset_of(&superblock.reserved_end), 432),
        ];
        for (offset, words) in reserved {
            self.check_reserved(FindingLocation::default(), offset, words, "the superblock");
        }
        let reserve = superblock.reserve.load();
        if reserve != 0 && superblock.reserved_blocks() == 0 {
            let offset = pm.offset_of(&superblock.reserve);
            let sentence = format_args!("the word of blocks reserved for root is damaged, so none are");
            self.report(FindingKind::ReservedNotZero, at(offset), Repair::SetWord { offset, word: 0 }, sentence);
        }
        if superblock.state.load() >> 33 != 0 {
            let offset = pm.offset_of(&superblock.state);
            let sentence = format_args!("reserved bits of the state word are not zero");
            let word = superblock.state().word();
            self.report(FindingKind::ReservedNotZero, at(offset), Repair::SetWord { offset, word }, sentence);
        }
        if is_whole {
            self.check_copy(superblock);
        }
    }

    fn check_copy(&mut self, superblock: &Superblock) {
        let block = self.image.geometry.copy_block();
        let same = whole_copy(self.image.region, block).is_some_and(|copy| {
            let words = |superblock: &Superblock| {
                let all = superblock.uuid.iter().chain(&superblock.label).chain(&superblock.geometry);
                let others = [&superblock.version, &superblock.created_ns, &superblock.length];
                let features = [&superblock.features_compat, &superblock.features_incompat];
                let cells = all.chain(others).chain(features).map(|cell| cell.load());
                cells.chain([superblock.reserved_blocks()]).collect::<Vec<_>>()
            };
            // A crash may have left a feature that the copy gets first.
            let (features, in_copy) = (superblock.features_ro_compat.load(), copy.features_ro_compat.load());
            words(copy) == words(superblock) && (in_copy == features || in_copy == features | FEATURE_FILE_FLAGS)
        });
        if !same {
            self.report(
                FindingKind::SuperblockCopy,
                at(block * BLOCK_BYTES),
                Repair::RewriteCopy { copy: block },
                format_args!(
                    "the copy of the superblock in the last block is damaged or differs; the superblock itself is whole"
                ),
            );
        }
    }
}
