/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a configuration beyond the syntax of each key.
 *
 * Happy path: every rule holds; devices: auto is counted.
 *
 * Failure modes: the first rule that does not hold, as one line that names the
 * key and what to write. Nothing is created or changed. */
#include "daemon/config/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "daemon/gpu/node/node_devices.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUOTA_DOCUMENTS_MIN (UINT64_C(1) << 20)
#define QUOTA_ETCD_MIN      (UINT64_C(32) << 20)
#define QUOTA_ETCD_MAX      (UINT64_C(8) << 30)
#define STAGING_MIN         (2ull * PTC_EXTENT_MAX_BYTES) /* one extent coming in, one going out */
#define FUSE_CACHE_MIN      (8ull << 20)                  /* fusefs/serve/fusefs.h */
#define FUSE_TIMEOUT_MAX    600000
#define SOURCES_CACHE_MIN   (16ull << 20) /* daemon/sources/cache.h */
#define COPIES_RATE_MIN     (1ull << 20)  /* a slice of 512 KiB has to come well within the time a stream may stall */
#define LEASE_TTL_MAX       600000
#define STALL_AFTER_MAX     (7 * 86400000ull)
#define NODE_LOST_AFTER_MAX (7 * 86400000ull)
#define NODE_QUARANTINE_MAX 3600000ull
#define CUT_OFF_AFTER_MAX   (7 * 86400000ull)
#define COPY_TIMEOUT_MAX    3600000
#define HEALTH_MAX          86400000 /* milliseconds */

/* ---- rules ------------------------------------------------------------------ */

static int check_file(const struct ptc_daemon_config *cfg, const char *key, const char *path, struct ptc_error *err)
{
	struct stat st;

	if (stat(path, &st) != 0 || access(path, R_OK) != 0)
		return ptc_daemon_config_error(cfg, key, err, PTC_EINVAL, "cannot read %s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return ptc_daemon_config_error(cfg, key, err, PTC_EINVAL, "%s is not a file", path);
	return 0;
}

static int check_tls(const struct ptc_daemon_config *cfg, const char *section, const struct ptc_daemon_tls *tls,
		     struct ptc_error *err)
{
	const struct {
		const char *name, *path;
	} file[] = { { "ca", tls->ca }, { "cert", tls->cert }, { "key", tls->key } };
	char key[64];
	struct stat st;
	int rc = 0;

	if (!tls->ca && !tls->cert && !tls->key)
		return 0;
	for (size_t i = 0; i < PTC_ARRAY_LEN(file) && !rc; i++) {
		snprintf(key, sizeof key, "%s.%s", section, file[i].name);
		if (!file[i].path)
			return ptc_daemon_config_error(cfg, key, err, PTC_EINVAL,
						       "missing; %s needs ca, cert and key together", section);
		rc = check_file(cfg, key, file[i].path, err);
	}
	if (!rc && stat(tls->key, &st) == 0 && (st.st_mode & 007))
		rc = ptc_daemon_config_error(cfg, key, err, PTC_EPERM, "%s is open to everybody: chmod 600 it",
					     tls->key);
	return rc;
}

static int check_own_tls(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	static const char *const keys[] = { "tls.member", "tls.crl" };
	int rc = check_tls(cfg, "tls", &cfg->tls, err);

	for (size_t i = 0; !rc && !cfg->tls.ca && i < PTC_ARRAY_LEN(keys); i++)
		if (ptc_daemon_config_given(cfg, keys[i]))
			rc = ptc_daemon_config_error(
				cfg, keys[i], err, PTC_EINVAL,
				"has no effect without tls: {ca, cert, key}; add these or remove this");
	if (!rc && cfg->tls.crl)
		rc = check_file(cfg, "tls.crl", cfg->tls.crl, err);
	return rc;
}

static int check_listen(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	struct ptc_daemon_address l, a;
	int rc = ptc_daemon_address_parse(cfg->listen, &l, err);

	if (!rc)
		rc = ptc_daemon_address_parse(cfg->advertise, &a, err);
	if (rc)
		return rc;
	if (!l.local && !cfg->tls.ca && !cfg->insecure_loopback)
		return ptc_daemon_config_error(cfg, "listen", err, PTC_EPERM,
					       "%s without tls; add tls: {ca, cert, key}, or listen on unix:PATH",
					       cfg->listen);
	if (!l.loopback && !cfg->tls.ca)
		return ptc_daemon_config_error(
			cfg, "listen", err, PTC_EPERM,
			"%s: --insecure-loopback is for 127.0.0.1 only; add tls: {ca, cert, key}", cfg->listen);
	if (a.wildcard)
		return ptc_daemon_config_error(cfg, "advertise", err, PTC_EINVAL,
					       "nobody can connect to %s; write the address other nodes use",
					       cfg->advertise);
	if (a.local != l.local)
		return ptc_daemon_config_error(cfg, "advertise", err, PTC_EINVAL,
					       "%s cannot stand for %s: both must be unix: or neither", cfg->advertise,
					       cfg->listen);
	return 0;
}

static int check_directory(const struct ptc_daemon_config *cfg, const char *key, const char *path,
			   struct ptc_error *err)
{
	struct stat st;

	if (stat(path, &st) == 0) {
		if (S_ISDIR(st.st_mode))
			return 0;
		return ptc_daemon_config_error(cfg, key, err, PTC_EINVAL, "%s is not a directory", path);
	}
	if (errno == ENOENT) /* made at start */
		return 0;
	return ptc_daemon_config_error(cfg, key, err, PTC_EINVAL, "cannot use %s: %s", path, strerror(errno));
}

static int check_paths(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	int rc = check_directory(cfg, "state_dir", cfg->state_dir, err);

	if (!rc)
		rc = check_directory(cfg, "chunk_dir", cfg->chunk_dir, err);
	if (!rc)
		rc = check_directory(cfg, "run_dir", cfg->run_dir, err);
	if (!rc && cfg->coordinator.local)
		rc = check_directory(cfg, "local_coordinator.data_dir", cfg->local_coordinator.data_dir, err);
	if (!rc && strlen(cfg->control_socket) > PTC_SOCKET_PATH_MAX)
		rc = ptc_daemon_config_error(
			cfg, "control_socket", err, PTC_ELIMIT,
			"%s is longer than a socket's name can be (%zu bytes); choose a shorter one",
			cfg->control_socket, PTC_SOCKET_PATH_MAX);
	return rc;
}

static int check_memory(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_memory memory;

	if (cfg->memory.staging < STAGING_MIN)
		return ptc_daemon_config_error(cfg, "memory.staging", err, PTC_EINVAL, "must be at least %lluMiB",
					       STAGING_MIN >> 20);
	if (cfg->memory.work < PTC_MEMORY_WORK_MIN)
		return ptc_daemon_config_error(cfg, "memory.work", err, PTC_EINVAL, "must be at least %lluMiB",
					       PTC_MEMORY_WORK_MIN >> 20);
	if (ptc_daemon_config_memory(cfg, &memory, &why) != 0)
		return ptc_daemon_config_error(cfg, "memory.ceiling", err, PTC_EINVAL, "%s", why.text);
	return 0;
}

static int check_endpoints(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	for (size_t i = 0; i < cfg->coordinator.endpoints.n; i++) {
		const char *text = cfg->coordinator.endpoints.v[i];
		struct ptc_daemon_address a;
		int rc = ptc_daemon_address_parse(text, &a, err);

		if (rc)
			return rc;
		if (a.wildcard)
			return ptc_daemon_config_error(cfg, "coordinator.endpoints", err, PTC_EINVAL,
						       "nobody can connect to %s", text);
		if (!a.local && !cfg->coordinator.tls.ca && !(cfg->insecure_loopback && a.loopback))
			return ptc_daemon_config_error(cfg, "coordinator.endpoints", err, PTC_EPERM,
						       "%s without tls; add coordinator.tls or tls: {ca, cert, key}",
						       text);
	}
	return 0;
}

static int check_local_coordinator(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	const char *url = cfg->local_coordinator.listen;
	struct ptc_daemon_address a;

	if (strncmp(url, "https://", 8) == 0 && !cfg->tls.ca)
		return ptc_daemon_config_error(cfg, "local_coordinator.listen", err, PTC_EPERM,
					       "%s needs tls: {ca, cert, key}; or write unix", url);
	if (strncmp(url, "http://", 7) == 0 &&
	    (!cfg->insecure_loopback || ptc_daemon_address_parse(url + 7, &a, NULL) || !a.loopback))
		return ptc_daemon_config_error(cfg, "local_coordinator.listen", err, PTC_EPERM,
					       "%s is not protected; write unix or https://HOST:PORT", url);
	return 0;
}

static int check_coordinator(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	static const char *const local_keys[] = { "local_coordinator.data_dir", "local_coordinator.listen" };

	if (cfg->coordinator.local)
		return check_local_coordinator(cfg, err);
	for (size_t i = 0; i < PTC_ARRAY_LEN(local_keys); i++)
		if (ptc_daemon_config_given(cfg, local_keys[i]))
			return ptc_daemon_config_error(cfg, local_keys[i], err, PTC_EINVAL,
						       "has no effect without coordinator: local; remove it");
	if (!cfg->coordinator.stranger.cert != !cfg->coordinator.stranger.key)
		return ptc_daemon_config_error(cfg,
					       cfg->coordinator.stranger.cert ? "coordinator.stranger.key"
									      : "coordinator.stranger.cert",
					       err, PTC_EINVAL,
					       "missing; coordinator.stranger needs cert and key together");
	return check_endpoints(cfg, err);
}

static int check_fuse(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	static const char *const keys[] = { "fuse.cache", "fuse.timeout", "fuse.backing", "fuse.backing_dir" };

	for (size_t i = 0; !cfg->fuse.dir && i < PTC_ARRAY_LEN(keys); i++)
		if (ptc_daemon_config_given(cfg, keys[i]))
			return ptc_daemon_config_error(cfg, keys[i], err, PTC_EINVAL,
						       "has no effect without fuse.dir; add that or remove this");
	if (cfg->fuse.cache < FUSE_CACHE_MIN)
		return ptc_daemon_config_error(cfg, "fuse.cache", err, PTC_EINVAL, "must be at least %lluMiB",
					       FUSE_CACHE_MIN >> 20);
	if (cfg->fuse.timeout_ms < 1000 || cfg->fuse.timeout_ms > FUSE_TIMEOUT_MAX)
		return ptc_daemon_config_error(cfg, "fuse.timeout", err, PTC_EINVAL, "write 1s to 600s");
	return 0;
}

static int check_sources(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	if (cfg->sources.cache && cfg->sources.cache < SOURCES_CACHE_MIN)
		return ptc_daemon_config_error(cfg, "sources.cache", err, PTC_EINVAL, "must be at least %lluMiB, or 0B",
					       SOURCES_CACHE_MIN >> 20);
	return 0;
}

static int check_copies(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	if (cfg->copies.rate && cfg->copies.rate < COPIES_RATE_MIN)
		return ptc_daemon_config_error(cfg, "copies.rate", err, PTC_EINVAL, "must be at least %lluMiB, or 0B",
					       COPIES_RATE_MIN >> 20);
	return 0;
}

static int check_metrics(const struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	static const char *const keys[] = { "metrics_jobs", "metrics_public" };
	struct ptc_daemon_address a;
	struct in6_addr number;
	char host[INET6_ADDRSTRLEN + 2] = "";

	for (size_t i = 0; !cfg->metrics && i < PTC_ARRAY_LEN(keys); i++)
		if (ptc_daemon_config_given(cfg, keys[i]))
			return ptc_daemon_config_error(cfg, keys[i], err, PTC_EINVAL,
						       "has no effect without metrics; add that or remove this");
	if (!cfg->metrics)
		return 0;
	if (ptc_daemon_address_parse(cfg->metrics, &a, err))
		return PTC_EINVAL;
	if (strlen(cfg->metrics) - strlen(strrchr(cfg->metrics, ':')) < sizeof host)
		snprintf(host, sizeof host, "%.*s", (int)strcspn(cfg->metrics + (cfg->metrics[0] == '['), "]"),
			 cfg->metrics + (cfg->metrics[0] == '['));
	if (cfg->metrics[0] != '[')
		host[strcspn(host, ":")] = '\0';
	if (a.local || (strcmp(host, "localhost") != 0 && inet_pton(AF_INET, host, &number) != 1 &&
			inet_pton(AF_INET6, host, &number) != 1))
		return ptc_daemon_config_error(cfg, "metrics", err, PTC_EINVAL,
					       "%s: write an address in numbers and a port, such as 127.0.0.1:7461",
					       cfg->metrics);
	if (!a.loopback && !cfg->metrics_public)
		return ptc_daemon_config_error(cfg, "metrics", err, PTC_EPERM,
					       "%s can be read by whoever reaches it, without a password; add "
					       "metrics_public: yes if that is meant, or write 127.0.0.1:PORT",
					       cfg->metrics);
	return 0;
}

static int check_devices(struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;

	cfg->found = ptc_node_devices_free(cfg->found);
	if (!cfg->devices_auto)
		return ptc_node_devices_virtual(cfg->devices, &cfg->found, err);
	if (ptc_node_devices_find(&cfg->found, &why))
		return ptc_daemon_config_error(
			cfg, "devices", err, PTC_ENODEVICES,
			"auto found no device: %s; load the driver, or write devices: NUMBER for virtual devices",
			why.text);
	cfg->devices = ptc_node_devices_count(cfg->found);
	return 0;
}

int ptc_daemon_config_check(struct ptc_daemon_config *cfg, struct ptc_error *err)
{
	int rc = check_own_tls(cfg, err);

	if (!rc && !cfg->coordinator.local)
		rc = check_tls(cfg, "coordinator.tls", &cfg->coordinator.tls, err);
	if (!rc)
		rc = check_listen(cfg, err);
	if (!rc)
		rc = check_paths(cfg, err);
	if (!rc)
		rc = check_memory(cfg, err);
	if (!rc)
		rc = check_coordinator(cfg, err);
	if (!rc && (cfg->lease_ttl_ms < 1000 || cfg->lease_ttl_ms > LEASE_TTL_MAX || cfg->lease_ttl_ms % 1000))
		rc = ptc_daemon_config_error(cfg, "lease_ttl", err, PTC_EINVAL, "write whole seconds, 1s to 600s");
	if (!rc && (cfg->node_lost_after_ms < 1000 || cfg->node_lost_after_ms > NODE_LOST_AFTER_MAX))
		rc = ptc_daemon_config_error(cfg, "node_lost_after", err, PTC_EINVAL, "write 1s to 7d");
	if (!rc && cfg->node_quarantine_ms > NODE_QUARANTINE_MAX)
		rc = ptc_daemon_config_error(cfg, "node_quarantine", err, PTC_EINVAL,
					     "write at most 1h, or 0s for never");
	if (!rc && cfg->cut_off_after_ms && (cfg->cut_off_after_ms < 1000 || cfg->cut_off_after_ms > CUT_OFF_AFTER_MAX))
		rc = ptc_daemon_config_error(cfg, "cut_off_after", err, PTC_EINVAL, "write 1s to 7d, or 0s for never");
	if (!rc && cfg->stall_after_ms && (cfg->stall_after_ms < 1000 || cfg->stall_after_ms > STALL_AFTER_MAX))
		rc = ptc_daemon_config_error(cfg, "stall_after", err, PTC_EINVAL, "write 1s to 7d, or 0s for never");
	if (!rc && (cfg->copy_timeout_ms < 1000 || cfg->copy_timeout_ms > COPY_TIMEOUT_MAX))
		rc = ptc_daemon_config_error(cfg, "copy_timeout", err, PTC_EINVAL, "write 1s to 1h");
	if (!rc)
		rc = check_fuse(cfg, err);
	if (!rc)
		rc = check_sources(cfg, err);
	if (!rc)
		rc = check_copies(cfg, err);
	if (!rc && (cfg->health.every_ms < 1000 || cfg->health.every_ms > HEALTH_MAX))
		rc = ptc_daemon_config_error(cfg, "health.every", err, PTC_EINVAL, "write 1s to 1d");
	if (!rc && (cfg->health.timeout_ms < 1000 || cfg->health.timeout_ms > HEALTH_MAX))
		rc = ptc_daemon_config_error(cfg, "health.timeout", err, PTC_EINVAL, "write 1s to 1d");
	if (!rc)
		rc = check_metrics(cfg, err);
	if (!rc && cfg->quota.documents < QUOTA_DOCUMENTS_MIN)
		rc = ptc_daemon_config_error(cfg, "quota.documents", err, PTC_EINVAL, "must be at least 1MiB");
	if (!rc && (cfg->quota.etcd < QUOTA_ETCD_MIN || cfg->quota.etcd > QUOTA_ETCD_MAX))
		rc = ptc_daemon_config_error(cfg, "quota.etcd", err, PTC_EINVAL,
					     "write 32MiB to 8GiB, the most that etcd's makers advise");
	return rc ? rc : check_devices(cfg, err);
}
