/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/notify.h"

#include "base/log.h"
#include "base/sys/sys.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void ptc_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd;

	if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof addr.sun_path)
		return;
	memcpy(addr.sun_path, path, strlen(path));
	if (path[0] == '@')
		addr.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&addr,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path))) < 0)
		ptc_warn("ptcd", "cannot notify %s: %s", path, strerror(errno));
	close(fd);
}

void ptc_notify_watchdog(void)
{
	static int64_t every_ns = -1, next_ns;
	const int64_t now_ns = ptc_sys_now_ns();

	if (every_ns < 0) {
		const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

		every_ns = usec && (!pid || atol(pid) == getpid()) ? atoll(usec) * 1000 / 2 : 0;
	}
	if (every_ns <= 0 || now_ns < next_ns)
		return;
	next_ns = now_ns + every_ns;
	ptc_notify("WATCHDOG=1");
}
