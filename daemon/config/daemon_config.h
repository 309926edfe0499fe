/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's configuration file (YAML, version 1). One table in daemon_config.c makes the parser, --dump-config,
 * --check-config and the man page's section.
 *
 * Happy path: load (syntax, units, names), set insecure_loopback from the
 * command line, check (what needs the file system or two keys at once).
 *
 * Failure modes: every error is one line "FILE:LINE:COL: KEY: what is wrong
 * and what to write"; nothing is returned then. Not thread-safe; the config is
 * read-only once checked. */
#pragma once

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/config/memory.h"
#include "rpc/trust/tls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PTC_DAEMON_CONFIG_KEYS_MAX 64
#define PTC_DEVICE_LABEL_BYTES     48 /* as a devices file has at most */
#define PTC_DAEMON_ENDPOINTS_MAX   64 /* etcd clusters have 3 to 7 members */
#define PTC_DAEMON_ARGS_MAX        64

struct ptc_daemon_tls {
	char *ca, *cert, *key; /* all NULL: no TLS */
	char *member, *crl;    /* set in `tls` only: members' DNS name; list of revoked certificates, NULL: none */
};

struct ptc_node_devices;

#define PTC_FUSE_BACKING_AUTO UINT64_MAX

struct ptc_daemon_config {
	uint64_t version;
	char *node;
	char *rack;           /* NULL: none */
	char *state_dir;      /* meta environment, durable */
	char *chunk_dir;      /* chunk environments, e.g. on tmpfs */
	char *run_dir;        /* control socket and worker sockets */
	char *control_socket; /* default run_dir/control.sock */
	char *listen;         /* "HOST:PORT" or "unix:PATH" */
	char *advertise;      /* same forms; default listen */
	struct ptc_daemon_tls tls;
	bool devices_auto;
	uint64_t devices;               /* with devices_auto: filled by _check */
	struct ptc_node_devices *found; /* by _check; daemon/gpu/node */
	uint64_t device_copy;           /* bytes of each device */
	uint64_t prefetch;              /* bytes of the node */
	char *device_name;              /* NULL: what the driver says */
	char *devices_file;             /* NULL: the installed one, if there is one */
	struct {
		uint64_t ceiling, staging, work, spare; /* bytes */
	} memory;
	struct {
		bool local; /* supervise an etcd here; endpoints are then empty */
		struct ptc_daemon_strings {
			char **v;
			size_t n;
		} endpoints;               /* "HOST:PORT" or "unix:PATH" */
		struct ptc_daemon_tls tls; /* default: the node's */
		struct {
			char *cert, *key; /* NULL: none given */
		} stranger;
		bool unproved; /* it is not tried whether etcd turns strangers away */
	} coordinator;
	struct {
		char *data_dir; /* default state_dir/etcd */
		char *listen;   /* "unix" (default) or "https://HOST:PORT" */
	} local_coordinator;
	uint64_t lease_ttl_ms; /* whole seconds */
	uint64_t node_lost_after_ms;
	uint64_t node_quarantine_ms; /* 0: never */
	uint64_t cut_off_after_ms;   /* 0: never */
	uint64_t stall_after_ms;     /* 0: never */
	uint64_t copy_timeout_ms;
	struct {
		char *dir; /* NULL: no files */
		uint64_t cache, timeout_ms;
		uint64_t backing;  /* bytes of backing files; 0: none; PTC_FUSE_BACKING_AUTO */
		char *backing_dir; /* NULL: they are in memory */
	} fuse;
	struct {
		char *dir;
		uint64_t cache; /* bytes; 0: none */
	} sources;
	struct {
		uint64_t rate;     /* bytes a second; 0: none are read */
		uint64_t pause_ms; /* between rounds */
	} scrub;
	struct {
		uint64_t rate; /* bytes a second that come to this node; 0: as many as can */
	} copies;
	bool near; /* daemons of the same machine read each other's chunks in memory */
	struct {
		struct ptc_daemon_strings argv; /* n 0: no command; else a NULL follows */
		uint64_t every_ms, timeout_ms;
	} health;
	struct {
		uint64_t jobs, datasets, documents, etcd; /* daemon/cluster/quota.h */
	} quota;
	char *metrics; /* "HOST:PORT" in numbers, or localhost; NULL: none */
	bool metrics_jobs, metrics_public;
	enum ptc_log_level log;

	bool insecure_loopback; /* command line only; set it before _check */
	char *file;             /* for messages */
	struct {
		unsigned line, col; /* 0: not in the file */
	} where[PTC_DAEMON_CONFIG_KEYS_MAX];
};

/* Reads path, checks syntax, fills defaults. *ret_cfg: ptc_daemon_config_done it. */
int ptc_daemon_config_load(const char *path, struct ptc_daemon_config *ret_cfg, struct ptc_error *err);
/* Same from memory; name is what messages call it. */
int ptc_daemon_config_parse(const char *name, const char *text, size_t len, struct ptc_daemon_config *ret_cfg,
			    struct ptc_error *err);
void ptc_daemon_config_done(struct ptc_daemon_config *cfg);
/* timeouts.c: the i-th timeout (from 0) that contradicts another one, as one line that says which and what to write.
 * False: there are no more. */
bool ptc_daemon_config_timeout_clash(const struct ptc_daemon_config *cfg, size_t i, char *buf, size_t size);

/* Files, addresses, sizes and keys that depend on each other. Finds devices: auto by ptc-gpu. */
int ptc_daemon_config_check(struct ptc_daemon_config *cfg, struct ptc_error *err);
/* Checks the files of tls, coordinator.tls and coordinator.stranger: key, signature, time, uses, this node's name. */
int ptc_daemon_config_check_certificates(const struct ptc_daemon_config *cfg, struct ptc_error *err);
/* Connects to the etcd members as a stranger does. PTC_EPERM: one lets him in. A member that does not answer is logged.
 */
int ptc_daemon_config_check_strangers(const struct ptc_daemon_config *cfg, struct ptc_error *err);

/* Divides memory.ceiling into its shares; PTC_EINVAL: too small to be useful. *ret_memory is set in any case. */
int ptc_daemon_config_memory(const struct ptc_daemon_config *cfg, struct ptc_memory *ret_memory, struct ptc_error *err);

/* The whole configuration as YAML that loads to the same one, defaults included. Out of memory shows in b. */
void ptc_daemon_config_dump(const struct ptc_daemon_config *cfg, struct ptc_buf *b);
/* The keys as man page source (roff), in the order of the table. */
void ptc_daemon_config_print_man(FILE *out);

/* NULL in, or no TLS configured: false. The paths are borrowed from the config. */
static inline bool ptc_daemon_tls_rpc(const struct ptc_daemon_tls *tls, struct ptc_rpc_tls *ret_tls)
{
	if (!tls || !tls->ca)
		return false;
	*ret_tls = (struct ptc_rpc_tls){ .ca_path = tls->ca,
					 .cert_path = tls->cert,
					 .key_path = tls->key,
					 .member = tls->member,
					 .crl_path = tls->crl };
	return true;
}
