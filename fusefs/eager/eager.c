/* SPDX-License-Identifier: Apache-2.0 */
#include "fusefs/eager/eager.h"

#include "base/check.h"
#include "base/sys/sys.h"

#include <limits.h>
#include <poll.h>
#include <sched.h>

bool fs_eager_begins(const struct fs_eager *e, int64_t now_ns)
{
	return e->row >= FS_EAGER_ROW && now_ns >= e->asleep_until_ns;
}

bool fs_eager_again(struct fs_eager *e, int64_t began_ns, int64_t looked_ns, int64_t now_ns)
{
	if (now_ns - looked_ns >= FS_EAGER_AWAY_NS)
		e->asleep_until_ns = now_ns + FS_EAGER_CALM_NS;
	else if (now_ns - began_ns >= FS_EAGER_NS)
		e->row = e->row < FS_EAGER_LONG ? -FS_EAGER_LONG : 0;
	else
		return true;
	return false;
}

void fs_eager_came(struct fs_eager *e, int64_t waited_ns, bool brief)
{
	if (!brief || waited_ns > 2 * FS_EAGER_NS)
		e->row = PTC_MIN(e->row, 0);
	else if (e->row < INT_MAX)
		e->row++;
}

void fs_eager_wait(struct fs_eager *e, int fd, int64_t now_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int64_t began_ns = now_ns, looked_ns;

	if (!fs_eager_begins(e, now_ns))
		return;
	do {
		looked_ns = now_ns;
		if (poll(&p, 1, 0)) /* also an error, which read will meet */
			return;
		sched_yield();
		now_ns = ptc_sys_now_ns();
	} while (fs_eager_again(e, began_ns, looked_ns, now_ns));
}
