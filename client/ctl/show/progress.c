/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the progress of a switch on stderr: its phase, the rate and the time left. On a terminal one line is
 * rewritten, at most five times a second. Elsewhere no progress is shown, as with git: a script's log of stderr has
 * errors only. With --progress there is a line when a phase begins and every few seconds, for logs. Rate and ETA count
 * from the phase's start. Nothing here can fail a verb. */
#include "client/ctl/show/show.h"

#include "base/alloc.h"
#include "base/sys/sys.h"

#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TERMINAL_EVERY_NS (200 * INT64_C(1000000))
#define PLAIN_EVERY_NS    (5 * INT64_C(1000000000))

static bool lines_wanted; /* by --progress */

void ctl_progress_want_lines(void)
{
	lines_wanted = true;
}

void ctl_progress_init(struct ctl_progress *p)
{
	memset(p, 0, sizeof *p);
	p->terminal = isatty(STDERR_FILENO);
	p->began_ns = ptc_sys_now_ns();
}

static void put_eta(char *buf, size_t size, double seconds)
{
	if (seconds < 60)
		snprintf(buf, size, "%.0fs", seconds);
	else if (seconds < 3600)
		snprintf(buf, size, "%.0fm%02.0fs", (double)(int)(seconds / 60), (double)((int)seconds % 60));
	else
		snprintf(buf, size, "%.1fh", seconds / 3600);
}

static void compose(const struct ctl_progress *p, int64_t now, uint64_t done, uint64_t total, const char *text,
		    char *buf, size_t size)
{
	double seconds = (double)(now - p->phase_start_ns) / 1e9, rate = 0;
	char a[32], b[32], r[32], eta[32] = "", name[128];
	const char *about = ctl_phase_about(p->phase);

	snprintf(name, sizeof(name), "%s%s%s", p->phase, about ? ": " : "", about ? about : "");

	if (done >= p->phase_first && seconds > 0.05)
		rate = (double)(done - p->phase_first) / seconds;
	if (!total) {
		snprintf(buf, size, "%s%s%s", name, text && *text ? "  " : "", text ? text : "");
		return;
	}
	if (rate > 0 && total > done && (double)(total - done) / rate < 360000)
		put_eta(eta, sizeof(eta), (double)(total - done) / rate);
	snprintf(buf, size, "%s  %s of %s  %" PRIu64 "%%%s%s%s%s%s%s%s", name, ctl_bytes(done, a, sizeof(a)),
		 ctl_bytes(total, b, sizeof(b)), (uint64_t)(100.0 * (double)done / (double)total), rate > 0 ? "  " : "",
		 rate > 0 ? ctl_bytes((uint64_t)rate, r, sizeof(r)) : "", rate > 0 ? "/s" : "", *eta ? "  ETA " : "",
		 eta, text && *text ? "  " : "", text ? text : "");
}

/* A line that wraps can't be rewritten. */
static void cut(char *line, size_t size)
{
	struct winsize w;

	if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &w) && w.ws_col > 1 && w.ws_col <= size)
		line[w.ws_col - 1] = '\0';
}

void ctl_progress_show(struct ctl_progress *p, const char *phase, uint64_t done, uint64_t total, const char *text)
{
	int64_t now = ptc_sys_now_ns();
	bool fresh = strncmp(p->phase, phase, sizeof(p->phase) - 1) != 0;
	char line[512];

	if (!p->terminal && !lines_wanted)
		return;
	if (fresh) {
		snprintf(p->phase, sizeof(p->phase), "%s", phase);
		p->phase_start_ns = now;
		p->phase_first = done;
	} else if (now - p->shown_ns < (p->terminal ? TERMINAL_EVERY_NS : PLAIN_EVERY_NS)) {
		return;
	}
	p->shown_ns = now;
	compose(p, now, done, total, text, line, sizeof(line));
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	if (p->terminal)
		cut(line, sizeof(line));
	if (p->terminal)
		fprintf(stderr, "\r\033[K%s", line);
	else
		fprintf(stderr, "%s\n", line);
	fflush(stderr);
	p->open = p->terminal;
}

void ctl_progress_end(struct ctl_progress *p)
{
	if (p->open)
		fputs("\r\033[K", stderr);
	fflush(stderr);
	p->open = false;
}

int ctl_follow_fn(void *arg, const struct ptc_admin_progress *progress)
{
	struct ctl_follow *f = arg;

	ctl_progress_show(&f->progress, progress->phase, progress->bytes_done, progress->bytes_total, progress->text);
	if (progress->finished && !f->summary)
		f->summary = ptc_strdup(progress->summary);
	if (ctl_interrupted())
		return 1;
	if (!f->detach || progress->finished || !strcmp(progress->phase, "waiting") ||
	    !strcmp(progress->phase, "checking"))
		return 0;
	f->detached = true;
	return 1;
}

/* Daemons have deadlines, too, and may not even have begun. */
static bool stopped_waiting(const struct ctl *c, const struct ctl_follow *f, int rc)
{
	const int64_t limit_ms = c->opts.stream_timeout_ms;

	return rc == PTC_ETIMEOUT && limit_ms && ptc_sys_now_ns() - f->progress.began_ns >= limit_ms * 1000000;
}

int ctl_follow_end(struct ctl *c, struct ctl_follow *f, int rc, struct ptc_error *err)
{
	ctl_progress_end(&f->progress);
	if (f->detached) {
		err->code = 0;
		err->text[0] = '\0';
		rc = 0;
		if (c->chosen && !c->json)
			printf("job %s: ", c->chosen);
		puts(c->json ? "{\"accepted\":true}"
			     : "accepted; the daemon carries it out (see ptcctl status, ptcctl events)");
	} else if (stopped_waiting(c, f, rc)) {
		ptc_error_wrap(err, "stopped waiting after --timeout; the work goes on");
	} else if (!rc && f->summary && *f->summary) {
		rc = ctl_print_summary(c, f->summary, err);
	}
	ptc_free(f->summary);
	f->summary = NULL;
	return rc;
}
