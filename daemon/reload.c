/* SPDX-License-Identifier: Apache-2.0 */
/* SIGHUP: reads again the parts of ptcd.yaml that can change while ptcd runs.
 *
 * Happy path: on a thread of libuv, the configuration is read, and the certificates that the running configuration
 * names are checked. Then the log's level is set, and certificates count as renewed: connections that are made from now
 * on, in either direction, use what the files hold. Open connections stay.
 *
 * Failure modes: a configuration or certificate that is wrong is one line in
 * the log, and nothing of it is taken; keys that need a restart are named as
 * such. Never ends the daemon. */
#include "daemon/ptcd.h"

#include "base/alloc.h"
#include "base/log.h"
#include "daemon/config/cert_end.h"

#include <string.h>
#include <uv.h>

struct ptc_reload {
	uv_work_t work;
	uv_loop_t *uv;
	const struct ptc_daemon *d;
	char *file;
	enum ptc_log_level log; /* in force */
	bool busy, again;
};

struct ptc_reload *ptc_reload_new(uv_loop_t *uv, const struct ptc_daemon *d, const char *file)
{
	struct ptc_reload *r = ptc_calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->uv = uv;
	r->d = d;
	r->log = d->config.log;
	r->file = ptc_strdup(file);
	if (!r->file) {
		ptc_free(r);
		return NULL;
	}
	return r;
}

struct ptc_reload *ptc_reload_free(struct ptc_reload *r)
{
	if (r)
		ptc_free(r->file);
	ptc_free(r);
	return NULL;
}

/* Whether the two differ in anything but the log's level. */
static bool otherwise(const struct ptc_daemon_config *now, struct ptc_daemon_config *given)
{
	struct ptc_buf a = PTC_BUF_INIT, b = PTC_BUF_INIT;
	const enum ptc_log_level log = given->log;
	bool differ;

	given->log = now->log;
	ptc_daemon_config_dump(now, &a);
	ptc_daemon_config_dump(given, &b);
	given->log = log;
	differ = ptc_buf_failed(&a) || ptc_buf_failed(&b) || strcmp(a.data, b.data) != 0;
	ptc_buf_done(&a);
	ptc_buf_done(&b);
	return differ;
}

static void read_config(struct ptc_reload *r)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_daemon_config given = { 0 };

	if (ptc_daemon_config_load(r->file, &given, &err) != 0) {
		ptc_error_log("ptcd", "the configuration stays as it was: %s", err.text);
		return;
	}
	if (given.log != r->log) {
		r->log = given.log;
		ptc_log_level_set(given.log);
	}
	ptc_debug("ptcd", "%s read again", r->file);
	if (otherwise(&r->d->config, &given))
		ptc_warn("ptcd",
			 "%s has changed: of the log's level it is in force, of all else once ptcd is started again",
			 r->file);
	ptc_daemon_config_done(&given);
}

static void read_certificates(const struct ptc_reload *r)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (r->d->insecure || (!r->d->config.tls.ca && !r->d->config.coordinator.tls.ca))
		return;
	if (ptc_daemon_config_check_certificates(&r->d->config, &err) != 0) {
		ptc_error_log("ptcd", "certificates stay as they were: %s", err.text);
		return;
	}
	ptc_cert_end_taken(&r->d->config);
	ptc_rpc_tls_renew();
	ptc_cert_end_look(&r->d->config);
	ptc_info("ptcd", "certificates are read again for new connections");
}

static void work(uv_work_t *w)
{
	struct ptc_reload *r = w->data;

	read_config(r);
	read_certificates(r);
}

static void done(uv_work_t *w, int status)
{
	struct ptc_reload *r = w->data;
	const bool again = r->again && status == 0;

	r->busy = r->again = false;
	if (again)
		ptc_reload(r);
}

void ptc_reload(struct ptc_reload *r)
{
	if (r->busy) {
		r->again = true;
		return;
	}
	r->work.data = r;
	r->busy = uv_queue_work(r->uv, &r->work, work, done) == 0;
}
