/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: probe_link.h. Sending never waits: the messages to a rank are few and short, so a rank
 * that does not read them is at fault. */
#include "client/ctl/probe/probe_link.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "proto/local_page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEYS_MAX PTC_LOCAL_RENDEZVOUS_KEYS_MAX

int ctl_link_listen(const char *dir, int *ret_fd, char **ret_path, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/probe.sock", dir);
	struct sockaddr_un address;
	int folder, fd, e;

	if (!path)
		return ptc_nomem(err);
	e = -ptc_local_address(path, &address, &folder);
	fd = e ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (!e && (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 64) != 0))
		e = errno;
	if (folder >= 0)
		close(folder);
	if (e) {
		ptc_close(&fd);
		return ptc_error_errno(err, e, "%s", path);
	}
	*ret_fd = fd;
	*ret_path = path;
	path = NULL;
	return 0;
}

bool ctl_link_accept(int listening, struct ctl_link *ret)
{
	int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return false;
	*ret = (struct ctl_link){ .fd = fd };
	ptc_local_conn_init(&ret->conn, fd, ptc_realloc);
	return true;
}

static void forget_keys(struct ctl_link *l)
{
	for (size_t i = 0; i < l->nkeys; i++) {
		ptc_free(l->keys[i].key);
		ptc_free(l->keys[i].value);
	}
	l->nkeys = 0;
}

void ctl_link_close(struct ctl_link *l)
{
	if (l->fd < 0)
		return;
	ptc_local_conn_done(&l->conn, ptc_free);
	ptc_close(&l->fd);
	forget_keys(l);
	ptc_free(l->keys);
	*l = (struct ctl_link){ .fd = -1 };
}

/* Frees out. */
static int say(struct ctl_link *l, uint16_t type, struct ptc_local_out *out, int fd, struct ptc_error *err)
{
	size_t offset = 0;
	int rc = out->failed ? -ENOMEM : ptc_local_send(&l->conn, type, out->data, out->len, fd, &offset);

	ptc_free(out->data);
	if (rc == -ENOMEM)
		return ptc_nomem(err);
	return rc == 1 ? 0 : ptc_error_set(err, PTC_ESTATE, "the program does not read the messages to it");
}

/* The page that rank and ptcd share (proto/local_page.h). -1: it cannot be made. */
static int make_page(void)
{
	int fd = memfd_create("ptc-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct ptc_local_page *page = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, PTC_LOCAL_PAGE) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		page = mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED) {
		ptc_close(&fd);
		return -1;
	}
	page->magic = PTC_LOCAL_MAGIC;
	page->version = PTC_LOCAL_PAGE_VERSION;
#if PTC_VERSION_RAISED
	page->added = PTC_VERSION_ADDED;
#endif
	atomic_store(&page->stop, PTC_LOCAL_NO_STOP);
	munmap(page, PTC_LOCAL_PAGE);
	return fd;
}

static int on_hello(struct ctl_link *l, const struct ptc_local_message *m, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct ptc_local_hello hello;
	ptc_auto_close int page = -1;

	if (!ptc_local_get_hello(m->data, m->len, &hello) || strlen(hello.token) != PTC_LOCAL_TOKEN)
		return ptc_error_set(err, PTC_EINVAL, "the program's first message is not the hello of libptc");
	if (hello.protocol_min > PTC_LOCAL_PROTOCOL || hello.protocol_max < PTC_LOCAL_OLDEST)
		return ptc_error_set(err, PTC_EVERSION,
				     "its libptc %.40s is too far from this ptcctl; use those of one version",
				     hello.version);
	page = make_page();
	if (page < 0)
		return ptc_error_errno(err, errno, "memory shared with the program");
	memcpy(l->token, hello.token, sizeof l->token);
	ptc_local_put_welcome(&out,
			      &(struct ptc_local_welcome){ hello.protocol_max < PTC_LOCAL_PROTOCOL ? hello.protocol_max
												   : PTC_LOCAL_PROTOCOL,
							   (uint64_t)getpid(), PTC_VERSION });
	return say(l, PTC_LOCAL_WELCOME, &out, page, err);
}

static int on_put(struct ctl_link *l, const struct ptc_local_rendezvous *r, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	struct ctl_link_key k = { .len = r->len };

	if (l->nkeys == KEYS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "the program puts more than %u keys into the rendezvous",
				     KEYS_MAX);
	k.key = ptc_strdup(r->key);
	k.value = ptc_malloc(r->len + 1);
	if (!k.key || !k.value || !PTC_ROOM(l->keys, l->nkeys + 1, l->keys_cap)) {
		ptc_free(k.key);
		ptc_free(k.value);
		return ptc_nomem(err);
	}
	if (r->len)
		memcpy(k.value, r->value, r->len);
	l->keys[l->nkeys++] = k;
	ptc_local_put_rendezvous(&out, &(struct ptc_local_rendezvous){ .id = r->id, .key = r->key });
	return say(l, PTC_LOCAL_RENDEZVOUS_REPLY, &out, -1, err);
}

static int on_get(struct ctl_link *l, const struct ptc_local_rendezvous *r, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };
	const struct ctl_link_key *k = l->keys + l->nkeys;

	while (k > l->keys && strcmp(k[-1].key, r->key) != 0)
		k--;
	if (k == l->keys)
		return ptc_error_set(err, PTC_ESTATE,
				     "the program asks for the key \"%.100s\", which another rank would put, and a "
				     "probe has no other ranks; let the program do without that key where PTC_PROBE is "
				     "set",
				     r->key);
	ptc_local_put_rendezvous(&out, &(struct ptc_local_rendezvous){
					       .id = r->id, .key = r->key, .value = k[-1].value, .len = k[-1].len });
	return say(l, PTC_LOCAL_RENDEZVOUS_REPLY, &out, -1, err);
}

/* After HELLO. */
static int on_message(struct ctl_link *l, const struct ptc_local_message *m, struct ctl_declaration *d,
		      enum ctl_link_turn *ret_turn, struct ptc_error *err)
{
	struct ptc_local_rendezvous r;

	switch (m->type) {
	case PTC_LOCAL_NEXT:
		*ret_turn = CTL_LINK_WANTS;
		return 0;
	case PTC_LOCAL_RENDEZVOUS_PUT:
	case PTC_LOCAL_RENDEZVOUS_GET:
		if (!l->generation || !ptc_local_get_rendezvous(m->data, m->len, &r))
			break;
		return m->type == PTC_LOCAL_RENDEZVOUS_PUT ? on_put(l, &r, err) : on_get(l, &r, err);
	case PTC_LOCAL_TENSOR:
		if (!l->generation)
			break;
		return ctl_declaration_add(d, m->data, m->len, err);
	case PTC_LOCAL_DECLARED:
		if (!l->generation)
			break;
		*ret_turn = CTL_LINK_DECLARED;
		return 0;
	default: /* where its memory is on devices, its blobs: no matter here */
		return 0;
	}
	return ptc_error_set(err, PTC_EINVAL, "the program sends message %u, which no rank sends at this time",
			     m->type);
}

int ctl_link_read(struct ctl_link *l, struct ctl_declaration *d, enum ctl_link_turn *ret_turn, struct ptc_error *err)
{
	struct ptc_local_message m;
	bool more = true;
	int rc = 0;

	*ret_turn = CTL_LINK_NOTHING;
	while (rc == 0 && more)
		rc = ptc_local_receive(&l->conn, &m, &more);
	if (rc == 0)
		return 0;
	if (rc == -EPROTO)
		return ptc_error_set(err, PTC_EINVAL, "the program sends bytes that are no message of libptc");
	if (rc == -ENOMEM)
		return ptc_nomem(err);
	if (rc < 0) {
		*ret_turn = CTL_LINK_GONE;
		return 0;
	}
	if (*l->token)
		rc = on_message(l, &m, d, ret_turn, err);
	else if (m.type == PTC_LOCAL_HELLO)
		rc = on_hello(l, &m, err);
	else
		rc = ptc_error_set(err, PTC_EINVAL, "the program's first message is not the hello of libptc");
	ptc_close(&m.fd);
	return rc;
}

int ctl_link_give(struct ctl_link *l, struct ptc_local_generation *g, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	forget_keys(l);
	g->generation = ++l->generation;
	g->incarnation = 1;
	ptc_local_put_generation(&out, g);
	return say(l, PTC_LOCAL_GENERATION, &out, -1, err);
}

int ctl_link_end(struct ctl_link *l, struct ptc_error *err)
{
	struct ptc_local_out out = { .grow = ptc_realloc };

	ptc_local_put_ended(&out, l->generation, 1);
	return say(l, PTC_LOCAL_ENDED, &out, -1, err);
}
