/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to other daemons, made on first use and kept. For each (node, address) there is at most one connection
 * for control calls, and one for each lane of bulk calls. */
#include "daemon/cluster/channels.h"

#include "base/alloc.h"
#include "base/limits.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct link {
	char key[PTC_NAME_MAX + 320];
	struct ptc_rpc_channel *channel;
	struct link *next;
};

struct ptc_channels {
	const struct ptc_rpc_tls *tls; /* NULL: plain TCP on loopback */
	pthread_mutex_t lock;
	struct link *head;
};

int ptc_channels_new(const struct ptc_rpc_tls *tls, struct ptc_channels **ret_channels, struct ptc_error *err)
{
	struct ptc_channels *c = ptc_calloc(1, sizeof *c);

	if (!c)
		return ptc_nomem(err);
	c->tls = tls;
	pthread_mutex_init(&c->lock, NULL);
	*ret_channels = c;
	return 0;
}

struct ptc_channels *ptc_channels_free(struct ptc_channels *c)
{
	while (c && c->head) {
		struct link *l = c->head;

		c->head = l->next;
		ptc_rpc_channel_free(l->channel);
		ptc_free(l);
	}
	if (c)
		pthread_mutex_destroy(&c->lock);
	ptc_free(c);
	return NULL;
}

static int open_channel(const struct ptc_rpc_tls *tls, const char *node, const char *address, bool bulk,
			struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	bool is_unix = strncmp(address, "unix:", 5) == 0;
	struct ptc_rpc_channel_opts opts = {
		.target = address,
		.tls = is_unix ? NULL : tls,
		.insecure = !is_unix && !tls,
		.expect_node = is_unix || !tls ? NULL : node,
		.renews = true,
		.bulk = bulk,
	};

	return ptc_rpc_channel_new(&opts, ret_channel, err);
}

int ptc_channels_probe(struct ptc_channels *c, const char *node, const char *address,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	return open_channel(c->tls, node, address, true, ret_channel, err);
}

static int open_locked(struct ptc_channels *c, const char *key, const char *node, const char *address, bool bulk,
		       struct link **ret_link, struct ptc_error *err)
{
	struct link *l = ptc_calloc(1, sizeof *l);
	int rc;

	if (!l)
		return ptc_nomem(err);
	rc = open_channel(c->tls, node, address, bulk, &l->channel, err);
	if (rc) {
		ptc_free(l);
		return rc;
	}
	snprintf(l->key, sizeof l->key, "%s", key);
	l->next = c->head;
	c->head = l;
	*ret_link = l;
	return 0;
}

void ptc_channels_retry(struct ptc_channels *c, const char *node)
{
	size_t len = strlen(node);

	pthread_mutex_lock(&c->lock);
	for (struct link *l = c->head; l; l = l->next)
		if (strncmp(l->key, node, len) == 0 && l->key[len] == ' ')
			ptc_rpc_channel_retry(l->channel);
	pthread_mutex_unlock(&c->lock);
}

int ptc_channels_get(struct ptc_channels *c, const char *node, const char *address, bool bulk, unsigned lane,
		     struct ptc_rpc_channel **ret_channel, struct ptc_error *err)
{
	char key[sizeof((struct link *)0)->key];
	struct link *l;
	int rc = 0;

	if (!address[0])
		return ptc_error_set(err, PTC_EPEER, "node %s is down", node);
	snprintf(key, sizeof key, "%s %s %d %u", node, address, bulk, lane);
	pthread_mutex_lock(&c->lock);
	for (l = c->head; l && strcmp(l->key, key) != 0;)
		l = l->next;
	if (!l)
		rc = open_locked(c, key, node, address, bulk, &l, err);
	pthread_mutex_unlock(&c->lock);
	if (rc)
		return rc;
	*ret_channel = l->channel;
	return 0;
}
