//! What can go wrong between an image and a store. Each message names cause and remedy, and no
//! credential: a location is shown without user, password and query.

use std::path::PathBuf;

/// A failed operation on a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A location cannot be understood.
    #[error(
        "{shown}: {reason}; write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY"
    )]
    Location {
        /// The location, without credentials.
        shown: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The client of a store cannot be set up.
    #[error(
        "cannot set up access to {shown}: {reason}; credentials, region and endpoint come from the environment (AWS_*, GOOGLE_*, AZURE_*)"
    )]
    Setup {
        /// The location, without credentials.
        shown: String,
        /// What the client said.
        reason: String,
    },
    /// A request failed, also when repeated.
    #[error("cannot {action} {object}: {reason}; repeat the command when the store answers")]
    Request {
        /// What was tried.
        action: &'static str,
        /// Location of the object.
        object: String,
        /// What the client said.
        reason: String,
    },
    /// The credentials do not suffice.
    #[error("the store does not permit to {action} {object}: {reason}; check the credentials in the environment")]
    Denied {
        /// What was tried.
        action: &'static str,
        /// Location of the object.
        object: String,
        /// What the client said.
        reason: String,
    },
    /// Nothing can be written there.
    #[error("cannot {action} {object}: the store has no such bucket or container; make it, or check the URL")]
    NoBucket {
        /// What was tried.
        action: &'static str,
        /// Location of the object.
        object: String,
    },
    /// A directory has no room.
    #[error(
        "cannot {action} {object}: its file system is full, or a limit on its use is reached; make room, and repeat the command"
    )]
    Full {
        /// What was tried.
        action: &'static str,
        /// Location of the object.
        object: String,
    },
    /// There is no image.
    #[error("no image at {shown}; check bucket and prefix, or push one: directfs push IMAGE {shown}")]
    NoImage {
        /// The location.
        shown: String,
    },
    /// An object is not what was written.
    #[error(
        "{object} is damaged: {reason}; pull another state (directfs store list), or push the image to another prefix"
    )]
    Damaged {
        /// Location of the object.
        object: String,
        /// What is wrong.
        reason: String,
    },
    /// A later program wrote it.
    #[error("{object} has version {version} of the format, and this program knows version 1: use a later program")]
    Version {
        /// Location of the object.
        object: String,
        /// The version that it names.
        version: u64,
    },
    /// Two writers could destroy each other's work.
    #[error(
        "{shown}: this store does not replace objects on a condition, so two writers could lose states: it can be read, not written; use S3, Google, Azure, MinIO or a directory"
    )]
    NoConditions {
        /// The location.
        shown: String,
    },
    /// The prefix belongs to another image.
    #[error(
        "{shown} holds another image, with UUID {theirs}, not {ours}: choose another prefix, or remove all objects below this one"
    )]
    OtherImage {
        /// The location.
        shown: String,
        /// UUID of the image in the store.
        theirs: String,
        /// UUID of the image on this machine.
        ours: String,
    },
    /// Another writer was faster.
    #[error(
        "another process pushed to {shown} meanwhile, and its state counts; nothing of this push does: look at both, then push again to replace it"
    )]
    Overtaken {
        /// The location.
        shown: String,
    },
    /// Other commands replaced the head again and again.
    #[error(
        "{shown}: other commands changed it {rounds} times while this one was at work, and nothing of this one counts: repeat it when they have ended (another push, `directfs replicate`, `directfs store gc`)"
    )]
    Busy {
        /// The location.
        shown: String,
        /// How often this command began.
        rounds: u32,
    },
    /// Another writer has taken the prefix over.
    #[error(
        "{shown} was taken over by {writer}: this writer has stopped, and its image is unchanged; start it again to take the prefix back, or give it another prefix"
    )]
    Fenced {
        /// The location.
        shown: String,
        /// The writer that has it now.
        writer: String,
    },
    /// Another state is there than the one that was opened.
    #[error(
        "{shown} has another state than generation {opened}, which was opened: {writer} wrote to it meanwhile, and its state counts"
    )]
    Changed {
        /// The location.
        shown: String,
        /// The writer of the state that is there.
        writer: String,
        /// The state that was opened.
        opened: u64,
    },
    /// No kept state fits.
    #[error("{shown} keeps no state for {wanted}; `directfs store list {shown}` shows what it keeps")]
    NoState {
        /// The location.
        shown: String,
        /// Tag, time or generation.
        wanted: String,
    },
    /// A file of this machine.
    #[error("cannot {action} {}: {source}", path.display())]
    Local {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// There is no place for a cache.
    #[error(
        "no directory for a cache: set HOME or XDG_CACHE_HOME to a directory that belongs to this user, and in which no other user may write `.cache/directfs/store`, or use `directfs pull`"
    )]
    NoCache,
    /// The image, or the file that is to become one.
    #[error(transparent)]
    Image(#[from] image::ImageError),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}
