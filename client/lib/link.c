/* SPDX-License-Identifier: Apache-2.0 */
/* libptc's own thread: keeps the connection to ptcd, and makes a new one when it breaks. Happy path: connect, HELLO,
 * WELCOME; then send the messages that the shared state still asks for, and act on those that come. Failure modes: if
 * the connection is lost, or brings malformed bytes, it is made anew, with growing pauses, for as long as the process
 * lives. All messages that the shared state still asks for are then sent again. REFUSED, another version, or a job
 * whose folder has been gone for a while is final (`fatal`): every call then returns that error. A rank that trains
 * gets it at its next boundary. */
#include "client/lib/link.h"
#include "client/lib/copy/summed.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BACKOFF_MIN_MS   5
#define BACKOFF_MAX_MS   500
#define HANDSHAKE_MS     10000
#define NAP_NS           1000000
#define FROZEN_MS        100   /* no nap of a process that runs takes so long */
#define LOOK_MS          1000  /* how often it is looked whether our descriptors are still ours, when nothing happens */
#define FOLDER_GONE_MS   60000 /* a job whose folder is missing for so long has been deleted */
#define TOUCH_BYTES      (4u << 20)
#define TOUCH_PAGE       4096u
#define REPORTED_VERSION PTC_VERSION

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void ptc_client_nap(int64_t *waited_ms)
{
	int64_t took_ms = now_ms();

	nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	took_ms = now_ms() - took_ms;
	*waited_ms += took_ms < FROZEN_MS ? took_ms : FROZEN_MS;
}

static void note_locked(ptc_client *c, const char *what, int e)
{
	snprintf(c->link_text, sizeof c->link_text, "%s: %s", what, strerror(e));
}

/* ---- out ------------------------------------------------------------------- */

static bool said_in_generation(ptc_client *c)
{
	return c->phase >= PHASE_BUILDING && c->phase <= PHASE_STOPPED;
}

static bool next_put_locked(ptc_client *c)
{
	struct put *p;

	if (c->sent.puts == c->nputs)
		return false;
	p = &c->puts[c->sent.puts++];
	ptc_local_put_rendezvous(&c->out, &(struct ptc_local_rendezvous){
						  .id = p->id, .key = p->key, .value = p->value, .len = p->len });
	c->out_type = PTC_LOCAL_RENDEZVOUS_PUT;
	return true;
}

static bool next_get_locked(ptc_client *c)
{
	if (!c->get.active || c->get.answered || c->sent.get)
		return false;
	c->sent.get = true;
	ptc_local_put_rendezvous(&c->out, &(struct ptc_local_rendezvous){ .id = c->get.id,
									  .key = c->get.key,
									  .timeout_ms = c->get.timeout_ms });
	c->out_type = PTC_LOCAL_RENDEZVOUS_GET;
	return true;
}

/* Tensors that are declared before they have memory are sent twice: once the program says that all are declared, and
 * when they have memory. */
static bool next_declaration_locked(ptc_client *c)
{
	bool first = c->layout && c->takes_layout && !c->sent.layout && c->phase <= PHASE_RESTORING;

	if (!first && (c->phase < PHASE_RESTORING || c->sent.declared))
		return false;
	if (c->sent.tensors < c->ntensors) {
		const struct tensor *t = &c->tensors[c->sent.tensors++];
		struct ptc_local_tensor m = { .name = t->name,
					      .field = t->field,
					      .dtype = t->dtype,
					      .ndim = t->ndim,
					      .flags = t->flags,
					      .nboxes = t->nboxes };

		memcpy(m.shape, t->shape, sizeof m.shape);
		ptc_local_put_tensor(&c->out, &m, t->boxes);
		c->out_type = PTC_LOCAL_TENSOR;
		return true;
	}
	c->out_type = PTC_LOCAL_DECLARED;
	if (first) {
		c->sent.layout = true;
		c->sent.tensors = 0;
		ptc_local_put_declared(&c->out, &(struct ptc_local_declared){ PTC_LOCAL_DECLARES_LAYOUT, c->does });
		return true;
	}
	if (c->sent.devices < c->devices.n) {
		const struct device_memory *d = &c->devices.v[c->sent.devices++];
		const char *why = d->why;

		if (d->descriptor)
			c->out_fd = ptc_device_export(d);
		if (d->descriptor && c->out_fd < 0)
			why = "the driver gives no descriptor of its handle";
		ptc_local_put_device(&c->out,
				     &(struct ptc_local_device){ d->address, d->bytes, d->context_id, d->buffer,
								 d->uuid, why, d->ipc, c->out_fd >= 0 });
		c->out_type = PTC_LOCAL_DEVICE;
		return true;
	}
	c->sent.declared = true;
	ptc_local_put_declared(&c->out,
			       &(struct ptc_local_declared){ c->phase > PHASE_RESTORING ? PTC_LOCAL_DECLARES_RUNNING
											: PTC_LOCAL_DECLARES_MEMORY,
							     c->does });
	return true;
}

static bool next_state_locked(ptc_client *c)
{
	for (size_t i = 0; i < c->set->nblobs; i++) {
		struct blob *b = &c->set->blobs[i];

		if (!b->dirty)
			continue;
		b->dirty = false;
		ptc_local_put_blob(&c->out, &(struct ptc_local_blob){ b->name, (uint8_t)b->scope, b->data, b->len });
		c->out_type = PTC_LOCAL_BLOB;
		return true;
	}
	for (size_t i = 0; i < c->set->ncursors; i++) {
		struct cursor *k = &c->set->cursors[i];

		if (!k->dirty)
			continue;
		k->dirty = false;
		ptc_local_put_cursor(&c->out, &(struct ptc_local_cursor){ k->name, k->tag, k->position });
		c->out_type = PTC_LOCAL_CURSOR;
		return true;
	}
	return false;
}

static bool next_stop_locked(ptc_client *c)
{
	if (c->phase != PHASE_STOPPED || c->sent.stopped)
		return false;
	if (next_state_locked(c))
		return true;
	c->sent.stopped = true;
	ptc_local_put_stopped(&c->out, &(struct ptc_local_stopped){ c->stop_step, c->stop_finished, c->stop_staged,
								    c->stop_refused, c->stop_later });
	c->out_type = PTC_LOCAL_STOPPED;
	return true;
}

static bool next_leave_locked(ptc_client *c)
{
	if (c->phase != PHASE_RUNNING || !c->leaves || c->sent.leaves)
		return false;
	c->sent.leaves = true;
	c->out_type = PTC_LOCAL_LEAVES;
	return true;
}

/* So that ptcd has it after us. Where somebody has closed the descriptor it ends with us. */
static bool next_keep_locked(ptc_client *c)
{
	if (c->phase < PHASE_RUNNING || !c->kept.map || c->sent.keeps)
		return false;
	c->sent.keeps = true;
	if (!ptc_client_fd_is_ours(&c->kept.fd))
		return false;
	c->out_fd = fcntl(c->kept.fd.fd, F_DUPFD_CLOEXEC, 0);
	if (c->out_fd < 0)
		return false;
	ptc_local_put_keeps(&c->out, &(struct ptc_local_keeps){ (uint64_t)(uintptr_t)c->kept.map, c->kept.bytes });
	c->out_type = PTC_LOCAL_KEEPS;
	return true;
}

/* Writes the next message into `out`. Nothing is said for a caller that has been told of an error: ptcd would write
 * into memory that it declared. */
static bool next_message_locked(ptc_client *c)
{
	c->out.len = 0;
	c->out.failed = false;
	c->out_offset = 0;
	if (c->fatal)
		return false;
	if (ptc_client_filled(c))
		return true;
	if (c->phase == PHASE_NEXT && !c->sent.next) {
		c->sent.next = true;
		c->out_type = PTC_LOCAL_NEXT;
		return true;
	}
	return said_in_generation(c) && (next_put_locked(c) || next_get_locked(c) || next_declaration_locked(c) ||
					 next_keep_locked(c) || next_stop_locked(c) || next_leave_locked(c));
}

static void say_again_locked(ptc_client *c)
{
	memset(&c->sent, 0, sizeof c->sent);
	for (size_t i = 0; i < c->set->nblobs; i++)
		c->set->blobs[i].dirty = true;
	for (size_t i = 0; i < c->set->ncursors; i++)
		c->set->cursors[i].dirty = true;
	if (c->phase == PHASE_NEXT) /* it is said again, perhaps for another generation */
		ptc_client_rank_state_clear(c->got);
	/* Bytes that were copied for another ptcd are not there for this one. */
	c->stop_staged = false;
	c->link++;
	ptc_client_staging_done(&c->offered);
}

/* ---- connection -------------------------------------------------------------- */

static void close_out(ptc_client *c)
{
	if (c->out_fd >= 0)
		close(c->out_fd);
	c->out_fd = -1;
}

static void disconnect(ptc_client *c)
{
	close_out(c);
	ptc_client_close_guarded(&c->conn_fd);
	ptc_local_conn_done(&c->conn, free);
	c->conn.fd = -1;
	c->connected = c->out_busy = false;
	ptc_client_fill_done(c);
	memset(&c->filled, 0, sizeof c->filled);
}

static bool say_hello(ptc_client *c)
{
	struct ptc_local_hello m = { .protocol_min = PTC_LOCAL_OLDEST,
				     .protocol_max = PTC_LOCAL_PROTOCOL,
				     .pid = (uint64_t)getpid(),
				     .token = c->token,
				     .version = REPORTED_VERSION,
				     .features = PTC_LOCAL_CAN_FILL | PTC_LOCAL_CAN_TAKE_STATE |
						 (ptc_summed_able() ? PTC_LOCAL_CAN_VERIFY : 0) };
	size_t offset = 0;

	c->out.len = 0;
	c->out.failed = false;
	pthread_mutex_lock(&c->lock);
	if (said_in_generation(c)) {
		m.resume_phase = (uint8_t)(PTC_LOCAL_BUILDS + (c->phase - PHASE_BUILDING));
		m.generation = c->generation.generation;
		m.incarnation = c->generation.incarnation;
		m.rank = c->generation.rank;
	}
	say_again_locked(c);
	pthread_mutex_unlock(&c->lock);
	ptc_local_put_hello(&c->out, &m);
	return !c->out.failed &&
	       ptc_local_send(&c->conn, PTC_LOCAL_HELLO, c->out.data, c->out.len, c->page_fd.fd, &offset) == 1;
}

static int open_socket(ptc_client *c)
{
	struct sockaddr_un address;
	int dir, fd, e = ptc_local_address(c->socket, &address, &dir);

	if (e)
		return e;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		e = -errno;
	} else if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
		e = -errno;
		close(fd);
	}
	if (dir >= 0)
		close(dir);
	return e ? e : fd;
}

/* So that what ptcd has started for our user (ptc-copy) may copy our memory where ptrace is restricted to parents: who
 * is named, and his descendants. */
static void allow_reading(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof cred;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0)
		prctl(PR_SET_PTRACER, (unsigned long)cred.pid, 0, 0, 0);
}

static bool connect_once(ptc_client *c)
{
	int fd = open_socket(c);

	if (fd < 0) {
		pthread_mutex_lock(&c->lock);
		note_locked(c, "connect", -fd);
		pthread_mutex_unlock(&c->lock);
		return false;
	}
	if (!ptc_client_guard_fd(&c->conn_fd, fd))
		return false;
	ptc_local_conn_init(&c->conn, fd, realloc);
	allow_reading(fd);
	if (!say_hello(c)) {
		disconnect(c);
		return false;
	}
	c->connected = c->handshake = true;
	return true;
}

static bool folder_gone(const ptc_client *c)
{
	char dir[4096];
	char *slash;

	snprintf(dir, sizeof dir, "%s", c->socket);
	slash = strrchr(dir, '/');
	if (!slash)
		return false;
	*slash = '\0';
	return access(dir, F_OK) != 0 && errno == ENOENT;
}

/* ---- in ---------------------------------------------------------------------- */

static bool page_ok(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_size == PTC_LOCAL_PAGE && seals >= 0 && (seals & F_SEAL_SHRINK);
}

static bool take_page(ptc_client *c, int fd)
{
	void *map = page_ok(fd) ? mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

	if (map == MAP_FAILED)
		return false;
	madvise(map, PTC_LOCAL_PAGE, MADV_DONTFORK);
	c->page = map;
	return true;
}

static bool keep_page(ptc_client *c, struct ptc_local_message *m)
{
	int fd = m->fd;

	m->fd = -1;
	return ptc_client_guard_fd(&c->page_fd, fd);
}

static bool on_welcome(ptc_client *c, struct ptc_local_message *m)
{
	struct ptc_local_welcome w;

	if (!ptc_local_get_welcome(m->data, m->len, &w))
		return false;
	if (w.protocol < PTC_LOCAL_OLDEST || w.protocol > PTC_LOCAL_PROTOCOL) {
		char text[256];

		snprintf(text, sizeof text,
			 "ptcd %.64s chose protocol %u, this libptc %s speaks %u to %u; install a ptcd next to it",
			 w.version, w.protocol, PTC_VERSION, PTC_LOCAL_OLDEST, PTC_LOCAL_PROTOCOL);
		ptc_client_set_fatal_locked(c, PTC_R_VERSION, text);
		return false;
	}
	if (!c->page) {
		if (m->fd < 0 || !take_page(c, m->fd) || !keep_page(c, m))
			return false;
	}
	c->takes_layout = w.features & PTC_LOCAL_TAKES_LAYOUT;
	c->handshake = false;
	c->welcomed = true;
	pthread_cond_broadcast(&c->changed);
	return true;
}

static bool on_generation(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_generation g;

	if (c->phase != PHASE_NEXT || !ptc_local_get_generation(m->data, m->len, &g))
		return false;
	snprintf(c->config, sizeof c->config, "%s", g.config);
	snprintf(c->job, sizeof c->job, "%s", g.job);
	c->generation = g;
	c->generation.config = c->config;
	c->generation.job = c->job;
	c->phase = PHASE_BUILDING;
	return true;
}

static bool on_rendezvous_reply(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_rendezvous r;

	if (!ptc_local_get_rendezvous(m->data, m->len, &r))
		return false;
	if (c->get.active && c->get.id == r.id) {
		c->get.answered = true;
		c->get.code = r.code;
		c->get.len = r.len;
		memcpy(c->get.value, r.value, r.len);
	}
	for (size_t i = 0; i < c->nputs; i++)
		if (c->puts[i].id == r.id && !c->puts[i].answered) {
			c->puts[i].answered = true;
			c->puts[i].code = r.code;
		}
	if (r.code)
		snprintf(c->link_text, sizeof c->link_text, "%.500s", r.text);
	return true;
}

static void map_staging(struct staging *o, int fd)
{
	uint8_t *map = ptc_client_map(fd, o->bytes, PROT_READ | PROT_WRITE);

	if (map == MAP_FAILED) {
		ptc_client_staging_done(o); /* then ptcd reads our memory itself */
		return;
	}
	madvise(map, o->bytes, MADV_DONTFORK);
	o->map = map;
}

static bool on_staging(ptc_client *c, struct ptc_local_message *m)
{
	struct ptc_local_staging s;
	struct stat st;
	struct staging *o = &c->offered;

	if (!ptc_local_get_staging(m->data, m->len, &s) || m->fd < 0 || fstat(m->fd, &st) != 0 ||
	    (uint64_t)st.st_size != s.bytes)
		return false;
	ptc_client_staging_done(o);
	o->spans = calloc(s.nspans ? s.nspans : 1, sizeof o->spans[0]);
	if (!o->spans)
		return true; /* then ptcd reads our memory itself */
	for (o->nspans = 0; o->nspans < s.nspans; o->nspans++)
		if (!ptc_local_get_span(&s, &o->spans[o->nspans])) {
			ptc_client_staging_done(o);
			return false;
		}
	o->bytes = s.bytes;
	o->link = c->link;
	map_staging(o, m->fd);
	return true;
}

/* Its pages are there; now they get into our page table, a little at a time so that nobody waits long for the lock. At
 * a stop this would cost as much as the copy itself. true: there is more. */
static bool touch_staging(ptc_client *c)
{
	struct staging *o = &c->offered;
	uint64_t end;
	bool more;

	pthread_mutex_lock(&c->lock);
	end = o->touched + TOUCH_BYTES < o->bytes ? o->touched + TOUCH_BYTES : o->bytes;
	for (; o->map && o->touched < end; o->touched += TOUCH_PAGE) /* the last page may be a part of one */
		(void)*(volatile const uint8_t *)(o->map + o->touched);
	more = o->map && o->touched < o->bytes;
	pthread_mutex_unlock(&c->lock);
	return more;
}

/* Before GENERATION, so that a program can refuse them before it declares; and again before RESTORED. */
static bool takes_state(const ptc_client *c)
{
	return c->phase == PHASE_NEXT || c->phase == PHASE_RESTORING;
}

/* With RESTORED comes all of it again, of the snapshot that is restored: nothing of an earlier one is to be left. */
static void forget_earlier_state(ptc_client *c)
{
	if (c->phase == PHASE_RESTORING && !c->state_again)
		ptc_client_rank_state_clear(c->got);
	c->state_again = c->phase == PHASE_RESTORING;
}

static bool keep_blob(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_blob b;
	struct blob *slot;
	void *copy;

	if (!takes_state(c) || !ptc_local_get_blob(m->data, m->len, &b))
		return false;
	forget_earlier_state(c);
	slot = ptc_client_blob(c->got, b.name, (enum ptc_blob_scope)b.scope);
	copy = malloc(b.len ? b.len : 1);
	if (!slot || !copy) {
		free(copy);
		return false;
	}
	memcpy(copy, b.data, b.len);
	free(slot->data);
	slot->data = copy;
	slot->len = b.len;
	return true;
}

static bool keep_cursor(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_cursor k;
	struct cursor *slot;

	if (!takes_state(c) || !ptc_local_get_cursor(m->data, m->len, &k))
		return false;
	forget_earlier_state(c);
	slot = ptc_client_cursor(c->got, k.name);
	if (!slot)
		return false;
	slot->position = k.position;
	snprintf(slot->tag, sizeof slot->tag, "%s", k.tag);
	return true;
}

static bool on_restored(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_restored r;

	if (!ptc_local_get_restored(m->data, m->len, &r))
		return false;
	if (c->phase != PHASE_RESTORING)
		return true; /* said again after a new connection */
	forget_earlier_state(c);
	c->restored = r.restored;
	c->generation.start_step = r.step;
	ptc_client_rank_state_on_locked(c);
	c->phase = PHASE_RUNNING;
	return true;
}

static bool on_refusal(ptc_client *c, const struct ptc_local_message *m)
{
	struct ptc_local_refusal r;

	if (!ptc_local_get_refusal(m->data, m->len, &r))
		return false;
	if (m->type == PTC_LOCAL_REFUSED) {
		ptc_client_set_fatal_locked(c, r.code < 0 ? r.code : PTC_R_REFUSED, r.text);
		return false;
	}
	if (c->phase == PHASE_RESTORING) {
		c->declined = true;
		c->phase = PHASE_IDLE;
		snprintf(c->link_text, sizeof c->link_text, "%.500s", r.text);
	} else if (c->phase == PHASE_BUILDING && c->layout) {
		c->declined = true; /* told at the next call */
		snprintf(c->link_text, sizeof c->link_text, "%.500s", r.text);
	}
	return true;
}

static bool on_ended(ptc_client *c, const struct ptc_local_message *m)
{
	uint64_t generation, incarnation;

	if (!ptc_local_get_ended(m->data, m->len, &generation, &incarnation))
		return false;
	if (said_in_generation(c) && generation == c->generation.generation &&
	    incarnation == c->generation.incarnation) {
		c->ended = true;
		c->phase = PHASE_IDLE;
	}
	return true;
}

/* GO, FINISHED */
static bool on_answer(ptc_client *c, const struct ptc_local_message *m)
{
	uint64_t n;

	if (!ptc_local_get_number(m->data, m->len, &n))
		return false;
	if (c->phase == PHASE_STOPPED && n == c->stop_step) {
		if (m->type == PTC_LOCAL_GO && !c->stop_finished) {
			c->phase = PHASE_RUNNING;
		} else if (m->type == PTC_LOCAL_FINISHED && c->stop_finished) {
			c->finished = true;
			c->phase = PHASE_IDLE;
		}
	}
	return true;
}

/* false: the connection is of no use any more. Types of a later protocol are passed over. */
static bool on_message_locked(ptc_client *c, struct ptc_local_message *m)
{
	if (c->handshake && m->type != PTC_LOCAL_WELCOME && m->type != PTC_LOCAL_REFUSED)
		return false;
	switch (m->type) {
	case PTC_LOCAL_WELCOME:
		return c->handshake && on_welcome(c, m);
	case PTC_LOCAL_REFUSED:
	case PTC_LOCAL_DECLINED:
		return on_refusal(c, m);
	case PTC_LOCAL_GENERATION:
		return on_generation(c, m);
	case PTC_LOCAL_EXIT:
		if (c->phase == PHASE_NEXT)
			c->phase = PHASE_OVER;
		return true;
	case PTC_LOCAL_STAGING:
		return on_staging(c, m);
	case PTC_LOCAL_BLOB:
		return keep_blob(c, m);
	case PTC_LOCAL_CURSOR:
		return keep_cursor(c, m);
	case PTC_LOCAL_RESTORED:
		return on_restored(c, m);
	case PTC_LOCAL_GO:
	case PTC_LOCAL_FINISHED:
		return on_answer(c, m);
	case PTC_LOCAL_ENDED:
		return on_ended(c, m);
	case PTC_LOCAL_RENDEZVOUS_REPLY:
		return on_rendezvous_reply(c, m);
	default:
		return true;
	}
}

static bool on_message(ptc_client *c, int rc, struct ptc_local_message *m)
{
	bool ok;

	ptc_client_fill_done(c);
	pthread_mutex_lock(&c->lock);
	if (rc < 0)
		note_locked(c, "connection to ptcd", -rc);
	ok = rc > 0 && on_message_locked(c, m);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return ok;
}

static bool receive_all(ptc_client *c)
{
	struct ptc_local_message m;
	bool more, ok, fill;

	for (;;) {
		int rc = ptc_local_receive(&c->conn, &m, &more);

		if (rc == 0 && more)
			continue;
		if (rc == 0)
			return true;
		fill = rc > 0 && m.type == PTC_LOCAL_FILL && !c->handshake;
		ok = fill ? ptc_client_fill(c, &m) : on_message(c, rc, &m);
		if (rc > 0 && m.fd >= 0)
			close(m.fd);
		if (!ok || fill) /* ptcd hears of each before the next */
			return ok;
	}
}

static bool send_all(ptc_client *c)
{
	int rc;

	if (c->handshake)
		return true;
	for (;;) {
		if (!c->out_busy) {
			pthread_mutex_lock(&c->lock);
			c->out_busy = next_message_locked(c);
			pthread_mutex_unlock(&c->lock);
			if (!c->out_busy)
				return true;
			if (c->out.failed)
				return false; /* tried again on a new connection */
		}
		rc = ptc_local_send(&c->conn, c->out_type, c->out.data, c->out.len, c->out_fd, &c->out_offset);
		if (rc <= 0)
			return rc == 0;
		close_out(c);
		c->out_busy = false;
	}
}

/* ---- the thread -------------------------------------------------------------- */

/* Before a descriptor is used and after each wait: it may have been closed meanwhile. A lost connection is made anew.
 */
static bool robbed(ptc_client *c)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = ptc_client_fds_closed_locked(c);
	pthread_mutex_unlock(&c->lock);
	return yes || !ptc_client_fd_is_ours(&c->conn_fd);
}

static void drain_wake(ptc_client *c)
{
	char some[64];
	ssize_t r = recv(c->wake[0].fd, some, sizeof some, MSG_DONTWAIT);

	(void)r;
}

/* One round with a connection. false: it is gone. */
static bool serve(ptc_client *c)
{
	struct pollfd p[2] = { { .fd = c->wake[0].fd, .events = POLLIN }, { .fd = c->conn.fd, .events = POLLIN } };
	bool more;

	if (robbed(c) || !send_all(c))
		return false;
	if (c->out_busy)
		p[1].events |= POLLOUT;
	more = touch_staging(c) || ptc_client_huge_step(c);
	if (poll(p, 2, more ? 0 : c->handshake ? HANDSHAKE_MS : LOOK_MS) == 0)
		return more || !c->handshake; /* else accepted, but not answered */
	if (robbed(c))
		return false;
	if (p[0].revents)
		drain_wake(c);
	return !p[1].revents || receive_all(c);
}

static bool leaving(ptc_client *c)
{
	bool yes;

	pthread_mutex_lock(&c->lock);
	yes = c->quit || c->fatal;
	pthread_mutex_unlock(&c->lock);
	return yes;
}

static void say_bye(ptc_client *c)
{
	size_t offset = 0;

	if (c->connected && !c->handshake && !c->out_busy && !robbed(c))
		ptc_local_send(&c->conn, PTC_LOCAL_BYE, NULL, 0, -1, &offset);
}

static void give_up_on_folder(ptc_client *c, int64_t *gone_since)
{
	if (!folder_gone(c)) {
		*gone_since = 0;
	} else if (!*gone_since) {
		*gone_since = now_ms();
	} else if (now_ms() - *gone_since > FOLDER_GONE_MS) {
		pthread_mutex_lock(&c->lock);
		ptc_client_set_fatal_locked(c, c->welcomed ? PTC_R_STALE : PTC_R_LOST,
					    "the job's folder is gone: it has been deleted");
		pthread_mutex_unlock(&c->lock);
	}
}

void ptc_client_staging_done(struct staging *s)
{
	if (s->map)
		munmap(s->map, s->bytes);
	free(s->spans);
	*s = (struct staging){ 0 };
}

void *ptc_client_link(void *client)
{
	int64_t gone_since = 0;
	int pause_ms = BACKOFF_MIN_MS;
	ptc_client *c = client;

	ptc_client_huge_init(c);
	while (!leaving(c)) {
		if (!c->connected && (robbed(c) || !connect_once(c))) {
			struct pollfd p = { .fd = c->wake[0].fd, .events = POLLIN };

			/* Nothing to say can hurry this: only ptc_close does. */
			if (!robbed(c) && poll(&p, 1, pause_ms) > 0 && !robbed(c))
				drain_wake(c);
			pause_ms = pause_ms * 2 < BACKOFF_MAX_MS ? pause_ms * 2 : BACKOFF_MAX_MS;
			give_up_on_folder(c, &gone_since);
			continue;
		}
		if (!serve(c)) {
			disconnect(c);
			poll(NULL, 0, pause_ms);
			continue;
		}
		if (!c->handshake)
			pause_ms = BACKOFF_MIN_MS;
	}
	say_bye(c);
	disconnect(c);
	return NULL;
}
