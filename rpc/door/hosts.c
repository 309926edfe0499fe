/* SPDX-License-Identifier: Apache-2.0 */
/* Remembers hosts from which members call. A host's address is proved by TCP's own handshake: a stranger elsewhere
 * cannot send from it. */
#include "rpc/door/internal.h"

#include "base/sys/sys.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define HOSTS_MAX 1024 /* of a cluster of 256 nodes with several addresses each */
#define DAY_NS    (INT64_C(86400) * 1000000000)

static struct {
	pthread_mutex_t lock;
	int count;
	struct {
		struct in6_addr host;
		int64_t until_ns;
	} of[HOSTS_MAX];
} hosts = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int find_locked(const struct in6_addr *host)
{
	for (int i = 0; i < hosts.count; i++)
		if (memcmp(&hosts.of[i].host, host, sizeof *host) == 0)
			return i;
	return -1;
}

/* Where there is no room, the one that nobody called from for the longest time goes. */
void ptc_door_member_host(const struct in6_addr *host)
{
	int i, oldest = 0;

	pthread_mutex_lock(&hosts.lock);
	i = find_locked(host);
	if (i < 0 && hosts.count < HOSTS_MAX)
		i = hosts.count++;
	for (int k = 1; i < 0 && k < hosts.count; k++)
		if (hosts.of[k].until_ns < hosts.of[oldest].until_ns)
			oldest = k;
	i = i < 0 ? oldest : i;
	hosts.of[i].host = *host;
	hosts.of[i].until_ns = ptc_sys_now_ns() + DAY_NS;
	pthread_mutex_unlock(&hosts.lock);
}

bool ptc_door_is_member_host(const struct in6_addr *host)
{
	bool is;
	int i;

	pthread_mutex_lock(&hosts.lock);
	i = find_locked(host);
	is = i >= 0 && hosts.of[i].until_ns > ptc_sys_now_ns();
	pthread_mutex_unlock(&hosts.lock);
	return is;
}

void ptc_door_v4_mapped(const struct in_addr *v4, struct in6_addr *ret)
{
	memset(ret, 0, sizeof *ret);
	ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
	memcpy(&ret->s6_addr[12], v4, sizeof *v4);
}

void ptc_door_member_address(const char *address)
{
	const char *colon = strrchr(address, ':');
	const bool brackets = address[0] == '[';
	char host[INET6_ADDRSTRLEN];
	struct in6_addr v6;
	struct in_addr v4;
	size_t len = colon ? (size_t)(colon - address) : 0;

	if (len < 3 || len - 2 * brackets >= sizeof host)
		return;
	snprintf(host, sizeof host, "%.*s", (int)(len - 2 * brackets), address + brackets);
	if (inet_pton(AF_INET, host, &v4) == 1)
		ptc_door_v4_mapped(&v4, &v6);
	else if (inet_pton(AF_INET6, host, &v6) != 1)
		return;
	ptc_door_member_host(&v6);
}
