/* SPDX-License-Identifier: Apache-2.0 */
/* What is served: jobs, snapshots and the views through which they are read,
 * files, nodes (names that the kernel knows), handles. All of it belongs to the
 * file system and is guarded by its lock; objects are counted. Functions that
 * need the lock end in _locked, all others must be called without it. */
#pragma once

#include "fusefs/samples/part.h"
#include "fusefs/serve/fusefs.h"

#include <sys/stat.h>

#define FS_NODES_MAX    (1u << 22) /* names the kernel may know at once */
#define FS_HANDLES      16384      /* files and directories open at once */
#define FS_PIN_MS       30000      /* a lease on a snapshot that somebody has open; renewed at a third of it */
#define FS_LINGER_MS    2000       /* and so long after the last close, for the next open */
#define FS_FRESH_MS     20         /* the list of jobs is asked for again after this */
#define FS_STALE_MS     1000 /* and after this, when the source did not answer: until then the old one has to do */
#define FS_PATIENCE_MS  500  /* how long others wait beside somebody who waits for that answer */
#define FS_JOB_NAME_MAX (PTC_NAME_MAX + 11) /* with its owner: 4294967294:NAME */
#define FS_FOREVER      (86400.0 * 365)
#define FS_SMALL        (16u << 10) /* bytes of a tensor that is read together with others */
#define FS_PLUS_NODES   65536       /* names the kernel knows at once, above which listings bring no nodes with them */
#define FS_SNAP_S       1.0 /* how long the kernel may believe that a snapshot, or a generation of data, is still there */

struct fs_op;

/* How a snapshot's bytes are read: through one generation that has it. */
struct fs_view {
	unsigned refs;
	struct ptc_fs_state *state;
	unsigned opens; /* handles that read through it */
	int64_t pinned_until_ns, closed_ns;
	bool pinned;          /* the source may still think so */
	struct fs_view *over; /* next of those that nothing refers to any more */
};
struct fs_snap {
	struct fs_snap *next;
	unsigned refs;
	char job[PTC_NAME_MAX + 1], uuid[37];
	uid_t uid;
	uint64_t number, step;
	struct fs_view *view; /* the newest; NULL: not looked at yet */
	bool loading;
	struct fs_file *pack; /* its small tensors; NULL: none of them has been looked up yet */
};
struct fs_file {
	unsigned refs;
	uint64_t id;         /* its content's: equal for equal bytes */
	uint64_t generation; /* 0: the same in each that has the snapshot */
	struct ptc_state_file sf;
	uint64_t *start; /* of each item in the file, and the end */
	uint64_t size;
	struct fs_place at; /* with a part: it is read by fs_part_read; sf is empty */
	/* A small tensor's file: all such bytes of the snapshot, one after the other, which are fetched and cached by
	 * blocks of many tensors, and where its own begin there. */
	struct fs_file *pack;
	uint64_t pack_at;
	int64_t apart_until_ns; /* of a pack: until then each tensor is read by itself, as some of it cannot be */
};

enum fs_kind {
	FS_ROOT,
	FS_JOB,
	FS_GENERATION,
	FS_STATE,
	FS_LATEST,
	FS_SNAP,
	FS_TENSORS,
	FS_GEN, /* what is of one generation of the snapshot: the ranks' */
	FS_RANKS,
	FS_FILE,
	FS_DATA, /* this and what follows: below data/ */
	FS_DATASET,
	FS_DATAGEN,
	FS_DP,
	FS_EPOCH,
	FS_SLOTS, /* a sample for each slot, where they are files */
	FS_PART,
};
struct fs_node {
	struct fs_node *next; /* in its hash chain */
	uint64_t id;          /* node and inode number: a hash of what it is; the root's is 1 */
	uint64_t nlookup;
	enum fs_kind kind;
	uid_t uid;
	bool shared; /* with group gid */
	gid_t gid;
	int64_t mtime_s;
	char uuid[37], job[PTC_NAME_MAX + 1]; /* below the root */
	char *link;                           /* FS_LATEST */
	struct fs_snap *snap;                 /* FS_SNAP and below */
	struct fs_file *file;                 /* FS_GENERATION, FS_FILE */
	bool opened;                          /* once: the kernel may be reading its pages */
	uint64_t generation;                  /* FS_GEN, FS_RANKS; 0: the snapshot's in each */
	struct fs_place at;                   /* FS_DATAGEN and below, as far as it is known there */
	char data[PTC_FIELD_NAME_MAX + 1];    /* FS_DATASET and below */
};
struct fs_handle {
	bool used;
	uint32_t turn; /* tells uses of a slot apart */
	struct fs_file *file;
	struct fs_snap *snap;
	struct fs_view *view;
	uint64_t next_off, window, ahead_to; /* sequential so far: the next byte, how far to read ahead, done up to */
	struct fs_place at;                  /* of FS_PART, and of FS_SLOTS */
	struct fs_dirent *list;              /* a directory */
	size_t nlist;
	struct fs_node *dir; /* FS_TENSORS: whose files are looked up as they are listed; with its references */
	struct fs_view *dir_view;
};
struct fs_dirent {
	char *name;
	uint64_t ino;
	mode_t type;
	uint32_t item; /* of FS_TENSORS */
};

/* objects.c */
int fs_errno(int rc);
struct fs_view *fs_view_ref_locked(struct fs_view *v);
void fs_view_unref_locked(struct ptc_fs *fs, struct fs_view *v);
struct fs_snap *fs_snap_ref_locked(struct fs_snap *s);
void fs_snap_unref_locked(struct ptc_fs *fs, struct fs_snap *s);
struct fs_file *fs_file_ref_locked(struct fs_file *f);
void fs_file_unref_locked(struct ptc_fs *fs, struct fs_file *f);
/* Samples that lie elsewhere, read through the cache. NULL: out of memory. Takes another reference to the part. */
struct fs_file *fs_file_of_place_locked(const struct fs_place *at, uint64_t id);
/* Takes sf over. NULL: out of memory (sf is released). */
struct fs_file *fs_file_new(struct ptc_state_file *sf, uint64_t id, uint64_t generation);
/* An item's file, whose bytes are small, is from now on read out of the snapshot's pack, which is made if need be. */
void fs_file_pack_locked(struct fs_snap *s, const struct ptc_spec *spec, struct fs_file *f);
/* A job by name or by uuid, as the source says now. 0, ENOENT or EIO. uid: who asks (root sees all). One that is shared
 * with a group is found by everybody: whether he may enter it the kernel knows, who has all his groups. */
int fs_job_find(struct ptc_fs *fs, const char *name, const char *uuid, uid_t uid, struct ptc_fs_job *ret);
int fs_jobs_refresh(struct ptc_fs *fs, bool now); /* now: whatever is believed */
/* Whether a person means this job by that name: NAME or UID:NAME. */
bool fs_job_named(const struct ptc_fs_job *j, const char *name);
void fs_job_full_name(const struct ptc_fs_job *j, char ret[FS_JOB_NAME_MAX + 1]);
bool fs_job_shares_name_locked(const struct ptc_fs *fs, const struct ptc_fs_job *job); /* another user's has the same */
double fs_jobs_believed_s(struct ptc_fs *fs, const struct ptc_fs_job *job);
bool fs_may_see(const struct ptc_fs *fs, uid_t uid, uid_t owner);
/* The object of a job's snapshot, a reference; made if need be. NULL: out of memory. */
struct fs_snap *fs_snap_get(struct ptc_fs *fs, const struct ptc_fs_job *job);
/* One that somebody still holds, by number. NULL: none. */
struct fs_snap *fs_snap_find(struct ptc_fs *fs, const char *uuid, uint64_t number, uint64_t step);
/* A reference to how it is read now. 0, ESTALE, EIO ... */
int fs_snap_view(struct ptc_fs *fs, struct fs_snap *s, bool anew, struct fs_view **ret);
/* Without asking anybody: NULL where that would be needed. */
struct fs_view *fs_snap_view_known_locked(const struct ptc_fs *fs, struct fs_snap *s);
/* The same, and held, its opens counted; fs_view_close gives it back. */
int fs_snap_open(struct ptc_fs *fs, struct fs_snap *s, uint64_t generation, struct fs_view **ret);
struct fs_view *fs_snap_open_known_locked(const struct ptc_fs *fs, struct fs_snap *s, uint64_t generation);
void fs_view_close_locked(struct ptc_fs *fs, struct fs_view *v);
/* Renews and gives up leases; asks the source. */
void fs_pins_tend(struct ptc_fs *fs);
void fs_part_unref_locked(struct ptc_fs *fs, struct fs_part *p);

/* Nodes: what the kernel knows by number, each with its references. */
struct fs_node *fs_node_new(enum fs_kind kind, const struct ptc_fs_job *job, uint64_t id);
uint64_t fs_identity(enum fs_kind kind, const char *uuid, uint64_t number, uint64_t generation, const char *name);
struct fs_node *fs_node_find_locked(struct ptc_fs *fs, uint64_t id);
/* Takes fresh over: it is put in, or given up for the one that is there. Counts one lookup. 0, EIO or ENFILE. */
int fs_node_put(struct ptc_fs *fs, struct fs_node *fresh, uint64_t *ret_id, struct stat *ret_stat);
int fs_node_put_locked(struct ptc_fs *fs, struct fs_node *fresh, uint64_t *ret_id, struct stat *ret_stat);
void fs_node_forget_locked(struct ptc_fs *fs, uint64_t id, uint64_t n);
void fs_node_free_locked(struct ptc_fs *fs, struct fs_node *n); /* one that was not put in */
void fs_node_stat(const struct ptc_fs *fs, const struct fs_node *n, struct stat *ret);
int fs_node_init(struct ptc_fs *fs, struct ptc_error *err);
void fs_nodes_free(struct ptc_fs *fs);
bool fs_file_stripped(const struct fs_file *f); /* what the file was made of is freed; it cannot be opened */
struct fs_listing {
	struct fs_dirent *v;
	size_t n, cap;
	bool failed;
	struct fs_view *view; /* FS_TENSORS: what was listed, a reference */
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
