/*
 * DirectFS: files of an image, inside the process. See directfs(3).
 *
 * Made from the sources of crates/c by `UPDATE=1 cargo test -p directfs-c --test header`.
 */

#ifndef DIRECTFS_H
#define DIRECTFS_H


#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

/*
 Strict C99 does not define it.
 */
struct timespec;

/*
 The version of this header; directfs_version() returns that of the library.
 */
#define DIRECTFS_VERSION_MAJOR 0
#define DIRECTFS_VERSION_MINOR 2
#define DIRECTFS_VERSION_PATCH 0


/*
 Refuse all changes by this process (EROFS).
 */
#define DIRECTFS_READ_ONLY 1

/*
 Keep other processes out; with DIRECTFS_READ_ONLY only those that write.
 */
#define DIRECTFS_EXCLUSIVE 2

/*
 Commit an image on a disk only at a sync.
 */
#define DIRECTFS_COMMIT_WHEN_SYNCED 4

/*
 Use an image on a disk in place. A power failure may destroy it: for scratch work.
 */
#define DIRECTFS_NO_COMMIT 8

/*
 Take blocks of the underlying file system only as the image fills.
 */
#define DIRECTFS_SPARSE 1

/*
 Overwrite what the file holds, also another image.
 */
#define DIRECTFS_OVERWRITE 2

/*
 The root directory gets the owner in `root_uid` and `root_gid`, not that of this process.
 */
#define DIRECTFS_ROOT_OWNER 4

/*
 What the effect of a returned call survives. See directfs(3).
 */
typedef enum directfs_durability {
  /*
   The death of every process, and a power failure.
   */
  DIRECTFS_POWER_FAILURE = 0,
  /*
   The death of every process.
   */
  DIRECTFS_PROCESS_DEATH = 1,
  /*
   The death of every process; a power failure if it was synced or is older than the interval.
   */
  DIRECTFS_COMMITTED = 2,
  /*
   The death of every process. A power failure may destroy the image while it is open.
   */
  DIRECTFS_CLEAN_CLOSE = 3,
  /*
   Nothing survives the process.
   */
  DIRECTFS_NOTHING = 4
} directfs_durability;

/*
 State of an image after directfs_image_close.
 */
typedef enum directfs_closed {
  /*
   No process uses it. It is clean, and on a disk written back.
   */
  DIRECTFS_CLEAN = 0,
  /*
   Other processes still use it.
   */
  DIRECTFS_OTHERS_REMAIN = 1,
  /*
   It was open for reading only.
   */
  DIRECTFS_WAS_READ_ONLY = 2
} directfs_closed;

/*
 A listing of a directory.
 */
typedef struct directfs_dir directfs_dir;

/*
 An image of this process, or a view of one: other credentials, or a part of the tree.
 */
typedef struct directfs_image directfs_image;

/*
 How to open an image. Zero everywhere means the defaults.
 */
typedef struct directfs_open_options {
  /*
   DIRECTFS_READ_ONLY and others, added up.
   */
  uint32_t flags;
  /*
   How long to wait for a process that excludes this one, in ms; 0: 5 seconds.
   */
  uint32_t timeout_ms;
  /*
   How often an image on a disk is committed without a sync, in ms; 0: 5 seconds.
   */
  uint64_t commit_interval_ms;
  /*
   The most memory for the working copy of an image on a disk; 0: half of what is available.
   */
  uint64_t memory_bytes;
  /*
   Files cached in memory at most; 0: as many as the image holds.
   */
  uint64_t cached_files;
  /*
   Where the processes of the image share memory; NULL: /dev/shm.
   */
  const char *shared_memory_directory;
  /*
   Zero.
   */
  uint64_t reserved[4];
} directfs_open_options;

/*
 A new image. Zero everywhere means the defaults, but for the size.
 */
typedef struct directfs_create_options {
  /*
   Bytes; ignored for a /dev/dax* device, which has its own size.
   */
  uint64_t size_bytes;
  /*
   Number of files that the image can hold; 0: one per 2 KiB.
   */
  uint64_t files;
  /*
   At most 64 bytes of UTF-8; NULL: none.
   */
  const char *label;
  /*
   DIRECTFS_SPARSE and others, added up.
   */
  uint32_t flags;
  /*
   Permission bits of the image file, which the umask reduces; 0: 0600.
   */
  uint32_t mode;
  /*
   Permission bits of the root directory; 0: 0755.
   */
  uint32_t root_mode;
  /*
   Owner of the root directory, with DIRECTFS_ROOT_OWNER.
   */
  uint32_t root_uid;
  /*
   Its group.
   */
  uint32_t root_gid;
  /*
   Zero.
   */
  uint32_t reserved_word;
  /*
   Zero.
   */
  uint64_t reserved[4];
} directfs_create_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What went wrong in the last failed call of this thread, and what to do about it: one line. Empty
 if none failed. The text is valid until this thread's next call of this function.
 */
const char *directfs_message(void);

/*
 The version of the library, for example "0.2.0".
 */
const char *directfs_version(void);

/*
 Opens an image for this process, shared with others. `options` may be NULL. NULL if it fails:
 EBUSY: a process uses the image exclusively; EUCLEAN: the file is no usable image; ENOSPC: too
 little room in /dev/shm.
 */
struct directfs_image *directfs_image_open(const char *file,
                                           const struct directfs_open_options *options);

/*
 Makes an image in a new or empty file, and opens it. NULL if it fails: EEXIST: the file is not
 empty; EINVAL: the size is missing or too small.
 */
struct directfs_image *directfs_image_create(const char *file,
                                             const struct directfs_create_options *options);

/*
 A new image in memory, for this process alone. It vanishes when it is closed.
 */
struct directfs_image *directfs_image_in_memory(uint64_t size_bytes);

/*
 Another handle of the same image, whose calls are made as another user: with a group,
 `count` supplementary groups, and a umask. Other handles act as the process at their opening.
 */
struct directfs_image *directfs_image_as_user(struct directfs_image *image,
                                              uid_t uid,
                                              gid_t gid,
                                              const gid_t *groups,
                                              size_t count,
                                              mode_t umask);

/*
 Another handle of the same image, whose paths begin at a directory and cannot leave it.
 */
struct directfs_image *directfs_image_subtree(struct directfs_image *image, const char *directory);

/*
 Closes an image: waits for calls in progress, closes its files, and detaches. Returns a value of
 `directfs_closed`. Later calls on its files and other handles fail with ENODEV; they are closed
 one by one all the same. Of a handle from directfs_image_as_user or directfs_image_subtree it
 only frees the handle, and returns 0. The handle is closed even if this fails: EIO: the image
 was truncated, or its disk failed.
 */
int directfs_image_close(struct directfs_image *image);

/*
 Commits an image to its disk: every call that returned before survives a power failure. Costs
 little elsewhere.
 */
int directfs_image_sync(struct directfs_image *image);

/*
 Copies an image to a new file while programs use it: the state of one moment during the call.
 The first open of the copy recovers it, so it cannot be for reading only.
 EEXIST: there is such a file; EOPNOTSUPP: the image is in memory.
 */
int directfs_image_snapshot(struct directfs_image *image, const char *file);

/*
 What the effect of a returned call survives: a value of `directfs_durability`.
 */
int directfs_image_durability(struct directfs_image *image);

/*
 1 if opening recovered the image, because its last use did not close it; otherwise 0.
 */
int directfs_image_was_recovered(struct directfs_image *image);

/*
 Total and free space, as statvfs(3).
 */
int directfs_statvfs(struct directfs_image *image, struct statvfs *status);

/*
 Makes this process survive the truncation of an image in use: calls then fail with EIO. It
 replaces the action for SIGBUS of the whole process: programs call it once at their start,
 libraries never.
 */
void directfs_survive_truncation(void);

/*
 Opens a file: flags and mode as of open(2). Returns a number for the other functions; it is no
 descriptor of the kernel.
 */
int directfs_open(struct directfs_image *image, const char *path, int flags, mode_t mode);

/*
 Whether the caller may use a file: R_OK, W_OK, X_OK added up, or F_OK.
 */
int directfs_access(struct directfs_image *image, const char *path, int rights);

/*
 Creates a directory.
 */
int directfs_mkdir(struct directfs_image *image, const char *path, mode_t mode);

/*
 Creates a directory and all its missing parents. An existing directory is no error.
 */
int directfs_mkdirs(struct directfs_image *image, const char *path);

/*
 Removes an empty directory.
 */
int directfs_rmdir(struct directfs_image *image, const char *path);

/*
 Removes a name of a file that is no directory.
 */
int directfs_unlink(struct directfs_image *image, const char *path);

/*
 Removes a directory and everything in it, or a symbolic link to one. Not atomic.
 */
int directfs_remove_tree(struct directfs_image *image, const char *path);

/*
 Renames a file; an existing `to` is replaced atomically.
 */
int directfs_rename(struct directfs_image *image, const char *from, const char *to);

/*
 Renames with a flag of renameat2(2): RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2).
 */
int directfs_rename2(struct directfs_image *image,
                     const char *from,
                     const char *to,
                     unsigned int flags);

/*
 Gives a file another name. A symbolic link at `original` is not followed.
 */
int directfs_link(struct directfs_image *image, const char *original, const char *link);

/*
 Creates a symbolic link with the content `target`.
 */
int directfs_symlink(struct directfs_image *image, const char *target, const char *link);

/*
 Reads a symbolic link, as readlink(2): without a zero byte at the end, and cut to the buffer.
 */
ssize_t directfs_readlink(struct directfs_image *image,
                          const char *path,
                          char *buffer,
                          size_t size);

/*
 Copies content and permission bits of a regular file; long files share their blocks. Returns the
 number of bytes.
 */
int64_t directfs_copy(struct directfs_image *image, const char *from, const char *to);

/*
 Sets the length of a file in bytes.
 */
int directfs_truncate(struct directfs_image *image, const char *path, off_t length);

/*
 Closes a file. Its lock ends with the last number of the open file.
 */
int directfs_close(int fd);

/*
 Another number of the same open file: they share position and locks.
 */
int directfs_dup(int fd);

/*
 Reads at the position, which advances.
 */
ssize_t directfs_read(int fd, void *buffer, size_t count);

/*
 Writes at the position, which advances. A write is atomic, and durable when it returns, as
 directfs_image_durability says.
 */
ssize_t directfs_write(int fd, const void *buffer, size_t count);

/*
 Reads at an offset. The position does not change.
 */
ssize_t directfs_pread(int fd, void *buffer, size_t count, off_t offset);

/*
 Writes at an offset. The position does not change. A file that was opened with O_APPEND is
 written at its end.
 */
ssize_t directfs_pwrite(int fd, const void *buffer, size_t count, off_t offset);

/*
 Sets and returns the position: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE.
 */
off_t directfs_lseek(int fd, off_t offset, int whence);

/*
 Sets the length of a file that is open for writing.
 */
int directfs_ftruncate(int fd, off_t length);

/*
 Reserves, frees or moves space: modes as of fallocate(2).
 */
int directfs_fallocate(int fd, int mode, off_t offset, off_t length);

/*
 Commits the image to its disk: every call that returned before, on this file and all others,
 survives a power failure.
 */
int directfs_fsync(int fd);

/*
 Does what `directfs_fsync` does.
 */
int directfs_fdatasync(int fd);

/*
 Attributes of a file, as stat(2). `st_dev` distinguishes images of this process.
 */
int directfs_stat(struct directfs_image *image, const char *path, struct stat *status);

/*
 Attributes of a file, or of a symbolic link itself.
 */
int directfs_lstat(struct directfs_image *image, const char *path, struct stat *status);

/*
 Attributes of an open file.
 */
int directfs_fstat(int fd, struct stat *status);

/*
 Sets permission bits (07777).
 */
int directfs_chmod(struct directfs_image *image, const char *path, mode_t mode);

/*
 Sets permission bits of an open file.
 */
int directfs_fchmod(int fd, mode_t mode);

/*
 Sets owner and group; -1 leaves one unchanged.
 */
int directfs_chown(struct directfs_image *image, const char *path, uid_t uid, gid_t gid);

/*
 Sets owner and group of a file, or of a symbolic link itself.
 */
int directfs_lchown(struct directfs_image *image, const char *path, uid_t uid, gid_t gid);

/*
 Sets owner and group of an open file.
 */
int directfs_fchown(int fd, uid_t uid, gid_t gid);

/*
 Sets the times of last access and modification, as utimensat(2): NULL is now for both, `tv_nsec`
 may be UTIME_NOW or UTIME_OMIT, and `flags` 0 or AT_SYMLINK_NOFOLLOW.
 */
int directfs_utimens(struct directfs_image *image,
                     const char *path,
                     const struct timespec *times,
                     int flags);

/*
 Sets the times of an open file, as directfs_utimens.
 */
int directfs_futimens(int fd, const struct timespec *times);

/*
 The value of an extended attribute, as getxattr(2): with size 0 only its length.
 */
ssize_t directfs_getxattr(struct directfs_image *image,
                          const char *path,
                          const char *name,
                          void *value,
                          size_t size);

/*
 The value of an extended attribute of an open file.
 */
ssize_t directfs_fgetxattr(int fd, const char *name, void *value, size_t size);

/*
 Sets an extended attribute: `flags` 0, XATTR_CREATE (1) or XATTR_REPLACE (2).
 */
int directfs_setxattr(struct directfs_image *image,
                      const char *path,
                      const char *name,
                      const void *value,
                      size_t size,
                      int flags);

/*
 Sets an extended attribute of an open file.
 */
int directfs_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);

/*
 Removes an extended attribute.
 */
int directfs_removexattr(struct directfs_image *image, const char *path, const char *name);

/*
 Removes an extended attribute of an open file.
 */
int directfs_fremovexattr(int fd, const char *name);

/*
 The names of a file's extended attributes, as listxattr(2): each with a zero byte behind it;
 with size 0 only their length.
 */
ssize_t directfs_listxattr(struct directfs_image *image, const char *path, char *list, size_t size);

/*
 The names of an open file's extended attributes.
 */
ssize_t directfs_flistxattr(int fd, char *list, size_t size);

/*
 Locks a whole file, as flock(2): LOCK_SH, LOCK_EX or LOCK_UN, and LOCK_NB to fail with EAGAIN
 instead of waiting. The lock belongs to the open file, and holds among all processes that have
 the image open. Signals do not end the wait.
 */
int directfs_flock(int fd, int operation);

/*
 Locks a range of bytes, as fcntl(2): `command` F_OFD_SETLK, F_OFD_SETLKW or F_OFD_GETLK; `l_pid`
 is 0, and `l_whence` SEEK_SET or SEEK_END. The lock belongs to the open file, and holds among
 all processes that have the image open. Signals do not end the wait.
 */
int directfs_lock(int fd, int command, struct flock *lock);

/*
 Begins a listing of a directory; NULL if it fails. Threads may share it.
 */
struct directfs_dir *directfs_opendir(struct directfs_image *image, const char *path);

/*
 The next entry: returns 1 and fills `entry` (`d_ino`, `d_type`, `d_name`), 0 at the end, and -1
 if it fails. `.` and `..` are left out.
 */
int directfs_readdir(struct directfs_dir *dir, struct dirent *entry);

/*
 Begins a listing again.
 */
int directfs_rewinddir(struct directfs_dir *dir);

/*
 Ends a listing.
 */
int directfs_closedir(struct directfs_dir *dir);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DIRECTFS_H */
