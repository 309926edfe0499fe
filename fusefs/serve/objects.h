/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that are served: jobs, snapshots and the views through which they are read, files, nodes (names that the
 * kernel knows), handles. All belong to the file system, whose lock guards them; they are counted. Functions that need
 * the lock end in _locked. All others must be called without it. */
#pragma once

#include "fusefs/backing/backings.h"
#include "fusefs/samples/part.h"
#include "fusefs/serve/fusefs.h"

#include <sys/stat.h>

#define FS_NODES_MAX    (1u << 22)          /* names that the kernel may know at once */
#define FS_HANDLES      16384               /* files and directories open at once */
#define FS_PIN_MS       30000               /* lease on a snapshot with open files; renewed at a third of it */
#define FS_LINGER_MS    2000                /* the lease continues so long after the last close, for the next open */
#define FS_FRESH_MS     20                  /* age at which the list of jobs is read again */
#define FS_STALE_MS     1000                /* and if the source did not answer: the old list stays valid until then */
#define FS_PATIENCE_MS  500                 /* how long other requests wait for that answer */
#define FS_JOB_NAME_MAX (PTC_NAME_MAX + 11) /* with its owner: 4294967294:NAME */
#define FS_FOREVER      (86400.0 * 365)
#define FS_SMALL        (16u << 10) /* bytes of a tensor that is read together with others */
#define FS_BACKING_MIN  (4u << 20)  /* bytes of a file that is worth a backing file */
#define FS_PLUS_NODES   65536       /* number of names in the kernel above which listings bring no nodes */
#define FS_SNAP_S       1.0         /* for so long the kernel may believe in a snapshot, or a generation of data */
struct fs_op;
/* How a snapshot's bytes are read: through one generation that has it. */
struct fs_view {
	unsigned refs;
	struct ptc_fs_state *state;
	unsigned opens; /* number of handles that read through it */
	int64_t pinned_until_ns, closed_ns;
	int64_t again_ns;     /* while it is open, the source is not asked to renew the pin before then */
	bool pinned;          /* the source may still have a pin */
	struct fs_view *over; /* next of the views without references */
};
struct fs_snap {
	struct fs_snap *next;
	unsigned refs;
	char job[PTC_NAME_MAX + 1], uuid[37];
	uid_t uid;
	uint64_t number, step;
	struct fs_view *view; /* the newest; NULL: none was made yet */
	bool loading;
	struct fs_file *pack; /* its small tensors; NULL: none was looked up yet */
};
struct fs_file {
	unsigned refs;
	uint64_t id;         /* identifies the content: equal for equal bytes */
	uint64_t generation; /* 0: the same in each generation with the snapshot */
	struct ptc_state_file sf;
	uint64_t *start; /* where each item begins, and the end */
	uint64_t size;
	struct fs_place at; /* with a part: fs_part_read reads it, and sf is empty */
	/* For a small tensor's file: the file of all small tensors' bytes of the snapshot, one after the other. It is
	 * fetched and cached in blocks of many tensors. pack_at: where this tensor begins there. */
	struct fs_file *pack;
	uint64_t pack_at;
	/* of a pack: until then each tensor is read by itself, because some of the pack cannot be read */
	int64_t apart_until_ns;
};

enum fs_kind {
	FS_ROOT,
	FS_JOB,
	FS_GENERATION,
	FS_STATE,
	FS_LATEST,
	FS_SNAP,
	FS_TENSORS,
	FS_GEN, /* below one generation of the snapshot: its ranks */
	FS_RANKS,
	FS_FILE,
	FS_DATA, /* this and the following ones: below data/ */
	FS_DATASET,
	FS_DATAGEN,
	FS_DP,
	FS_EPOCH,
	FS_SLOTS, /* one sample for each slot, if samples are files */
	FS_PART,
};
struct fs_node {
	struct fs_node *next; /* in its hash chain */
	uint64_t id;          /* node and inode number: a hash of its identity; 1 for the root */
	uint64_t nlookup;
	enum fs_kind kind;
	uid_t uid;
	bool shared; /* members of group gid may read it */
	gid_t gid;
	int64_t mtime_s;
	char uuid[37], job[PTC_NAME_MAX + 1]; /* for nodes below the root */
	char *link;                           /* for FS_LATEST */
	struct fs_snap *snap;                 /* for FS_SNAP and below */
	struct fs_file *file;                 /* for FS_GENERATION, FS_FILE */
	bool opened;                          /* it was opened once, so the kernel may be reading its pages */
	uint32_t asked;      /* number of open handles whose reads come to us; others are read from a backing file */
	uint64_t generation; /* for FS_GEN, FS_RANKS; 0: the same in each generation */
	struct fs_place at;  /* for FS_DATAGEN and below, as far as it is known there */
	char data[PTC_FIELD_NAME_MAX + 1]; /* for FS_DATASET and below */
};
struct fs_handle {
	bool used;
	uint32_t turn; /* tells the uses of a handle apart */
	struct fs_file *file;
	struct fs_snap *snap;
	struct fs_view *view;
	uint64_t ino; /* of the node that counts it in `asked` */
	bool asked;
	struct fs_backing *backing; /* the kernel reads this one instead of asking us; a reference */
	/* for sequential reads: the next byte, how far to read ahead, how far that is done */
	uint64_t next_off, window, ahead_to;
	struct fs_place at;     /* for FS_PART and FS_SLOTS */
	struct fs_dirent *list; /* entries, of a directory */
	size_t nlist;
	/* FS_TENSORS: the directory whose files are looked up as they are listed, with its references */
	struct fs_node *dir;
	struct fs_view *dir_view;
};
struct fs_dirent {
	char *name;
	uint64_t ino;
	mode_t type;
	uint32_t item; /* for FS_TENSORS */
};

/* objects.c */
int fs_errno(int rc);
struct fs_view *fs_view_ref_locked(struct fs_view *v);
void fs_view_unref_locked(struct ptc_fs *fs, struct fs_view *v);
struct fs_snap *fs_snap_ref_locked(struct fs_snap *s);
void fs_snap_unref_locked(struct ptc_fs *fs, struct fs_snap *s);
struct fs_file *fs_file_ref_locked(struct fs_file *f);
void fs_file_unref_locked(struct ptc_fs *fs, struct fs_file *f);
/* Makes a file of samples on other nodes, which is read through the cache. Takes another reference to the part. NULL:
 * out of memory. */
struct fs_file *fs_file_of_place_locked(const struct fs_place *at, uint64_t id);
/* Makes a file; takes sf over. NULL: out of memory (sf is released). */
struct fs_file *fs_file_new(struct ptc_state_file *sf, uint64_t id, uint64_t generation);
/* From now on, a small item's file is read from the snapshot's pack, which is made if needed. */
void fs_file_pack_locked(struct fs_snap *s, const struct ptc_spec *spec, struct fs_file *f);
/* Finds a job by name or by uuid in the source's list. Returns 0, ENOENT or EIO. uid: the caller (root sees all).
 * Everybody finds a job that is shared with a group: the kernel, which knows the caller's groups, decides who may enter
 * it. */
int fs_job_find(struct ptc_fs *fs, const char *name, const char *uuid, uid_t uid, struct ptc_fs_job *ret);
int fs_jobs_refresh(struct ptc_fs *fs, bool now); /* now: even if the list is still valid */
void fs_job_full_name(const struct ptc_fs_job *j, char ret[FS_JOB_NAME_MAX + 1]);
/* another user's job has the same name */
bool fs_job_shares_name_locked(const struct ptc_fs *fs, const struct ptc_fs_job *job);
double fs_jobs_believed_s(struct ptc_fs *fs, const struct ptc_fs_job *job);
bool fs_may_see(const struct ptc_fs *fs, uid_t uid, uid_t owner);
/* Returns a reference to the object of a job's snapshot, and makes it if needed. NULL: out of memory. */
struct fs_snap *fs_snap_get(struct ptc_fs *fs, const struct ptc_fs_job *job);
/* Finds a snapshot by number among those with references; NULL: none. */
struct fs_snap *fs_snap_find(struct ptc_fs *fs, const char *uuid, uint64_t number, uint64_t step);
/* Whether the job keeps that snapshot beside the committed one. */
bool fs_job_keeps(const struct ptc_fs_job *job, uint64_t number, uint64_t step);
/* Returns a reference to the snapshot's view. Returns 0, ESTALE, EIO and others. */
int fs_snap_view(struct ptc_fs *fs, struct fs_snap *s, bool anew, struct fs_view **ret);
/* fs_snap_view without asking the source; NULL if it must be asked. */
struct fs_view *fs_snap_view_known_locked(const struct ptc_fs *fs, struct fs_snap *s);
/* Returns the view, pinned, and counts an open; fs_view_close_locked gives it back. If the source does not answer, a
 * view that is known is returned all the same, and fs_pins_tend has it pinned once the source answers. */
int fs_snap_open(struct ptc_fs *fs, struct fs_snap *s, uint64_t generation, struct fs_view **ret);
struct fs_view *fs_snap_open_known_locked(const struct ptc_fs *fs, struct fs_snap *s, uint64_t generation);
void fs_view_close_locked(struct ptc_fs *fs, struct fs_view *v);
/* Renews leases and gives them up; asks the source. */
void fs_pins_tend(struct ptc_fs *fs);
void fs_part_unref_locked(struct ptc_fs *fs, struct fs_part *p);

/* Nodes: the names that the kernel knows by number, with the number of its references. */
struct fs_node *fs_node_new(enum fs_kind kind, const struct ptc_fs_job *job, uint64_t id);
uint64_t fs_identity(enum fs_kind kind, const char *uuid, uint64_t number, uint64_t generation, const char *name);
struct fs_node *fs_node_find_locked(struct ptc_fs *fs, uint64_t id);
/* Adds `fresh` and takes it over; an existing node is used instead of it. Counts one lookup. Returns 0, EIO or ENFILE.
 */
int fs_node_put(struct ptc_fs *fs, struct fs_node *fresh, uint64_t *ret_id, struct stat *ret_stat);
int fs_node_put_locked(struct ptc_fs *fs, struct fs_node *fresh, uint64_t *ret_id, struct stat *ret_stat);
void fs_node_forget_locked(struct ptc_fs *fs, uint64_t id, uint64_t n);
void fs_node_free_locked(struct ptc_fs *fs, struct fs_node *n); /* a node that was not added */
void fs_node_stat(const struct ptc_fs *fs, const struct fs_node *n, struct stat *ret);
int fs_node_init(struct ptc_fs *fs, struct ptc_error *err);
void fs_nodes_free(struct ptc_fs *fs);
bool fs_file_stripped(const struct fs_file *f); /* the file's parts are freed, and it cannot be opened */
struct fs_listing {
	struct fs_dirent *v;
	size_t n, cap;
	bool failed;
	struct fs_view *view; /* for FS_TENSORS: the listed view, a reference */
};
void fs_list_add(struct fs_listing *l, const char *name, uint64_t ino, mode_t type);
void fs_list_free(struct fs_dirent *list, size_t n);

/* data.c */
/* Whether the job's data can be read with its owner's rights. */
bool fs_data_shown(const struct ptc_fs *fs, const struct ptc_fs_job *job);
int fs_data_find(struct ptc_fs *fs, const struct fs_node *dir, const char *name, struct fs_node **ret);
int fs_data_list(struct ptc_fs *fs, const struct fs_node *dir, struct fs_listing *l);
void fs_run_part_read(struct ptc_fs *fs, struct fs_op *op);
/* Entry i of an open FS_SLOTS; false: there are no more. */
bool fs_data_slot(const struct fs_place *at, uint64_t i, char ret_name[FS_NAME_MAX + 1], uint64_t *ret_ino);
