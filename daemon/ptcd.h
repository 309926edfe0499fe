/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of ptcd: the ranks on this node, the mount of jobs' files, and the agent's questions. */
#pragma once

#include "daemon/api/caller/daemon.h"
#include "daemon/store/store.h"
#include "daemon/api/api.h"
#include "daemon/api/reads/reads.h"
#include "daemon/cluster/job_events.h"

/* ---- local_ranks.c: the ranks on this node ---------------------------------------------- */
int ptc_live_start(struct ptc_daemon *d, struct ptc_error *err); /* d->workers; takes up processes of an earlier life */
void ptc_live_stop(struct ptc_daemon *d);                        /* processes go on */
/* Any thread: tells the job's controller, through etcd; again until etcd has it or the job is gone. */
void ptc_live_event(void *arg, const struct ptc_worker_event *event);

/* Loop thread, again and again: devices that are not well, by the last look at them, are told to the cluster, and to
 * the jobs that have them. d->config.found is not NULL. */
void ptc_live_devices(struct ptc_daemon *d);

/* ---- cut_off.c: a node that no other machine answers -------------------------------------- */
struct ptc_cut_off;
/* If the configuration does not want it, *ret stays as it is. */
int ptc_cut_off_new(struct ptc_daemon *d, struct ptc_cut_off **ret, struct ptc_error *err);
void ptc_cut_off_tick(struct ptc_cut_off *o);                /* [loop], again and again; NULL ok */
struct ptc_cut_off *ptc_cut_off_free(struct ptc_cut_off *o); /* after the cluster has gone; NULL ok */

/* ---- files_mount.c: jobs' state as files -------------------------------------------------- */
struct ptc_mount;
/* config is borrowed. */
int ptc_mount_start(const struct ptc_daemon_config *config, struct ptc_mount **ret_mount, struct ptc_error *err);
struct ptc_mount *ptc_mount_stop(struct ptc_mount *m); /* the files stay; NULL ok */

/* ---- agent_env.c -------------------------------------------------------------------------- */
/* Puts the callbacks about documents (layouts, jobs, blobs, committed state), and `healed`, into env, whose arg is d.
 */
void ptc_layouts_agent_env(struct ptc_agent_env *env);

/* ---- reload.c: SIGHUP --------------------------------------------------------------------- */
struct uv_loop_s;
struct ptc_reload;
struct ptc_reload *ptc_reload_new(struct uv_loop_s *uv, const struct ptc_daemon *d,
				  const char *file);      /* NULL: no memory */
void ptc_reload(struct ptc_reload *r);                    /* [loop]; returns at once */
struct ptc_reload *ptc_reload_free(struct ptc_reload *r); /* after the loop has ended; NULL ok */
/* ---- damage.c: blocks that do not match their checksums ------------------------------------ */
/* Functions for struct ptc_store_opts. Any thread; arg: the daemon. */
void ptc_damaged(void *arg, const struct ptc_store_damage *what);
/* Functions for struct ptc_agent_env. Any thread; arg: the daemon. */
struct ptc_agent_healed;
void ptc_healed(void *arg, const struct ptc_agent_healed *healed);
