/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a caller has sent a whole ClientHello. A ClientHello lies in one TLS record. The record has type 22, version
 * 3.x and a length, and then the type of the ClientHello, 1, and a length of three bytes. Every TLS library sends a
 * ClientHello so, unless it is longer than a record. A caller who sends half of it, sends it byte by byte, or sends
 * anything else never costs the server behind us anything.
 *
 * Nothing is read: the bytes stay in the socket. */
#include "rpc/door/internal.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define RECORD_MAX         16384
#define HEAD               (PTC_DOOR_HELLO_LEAST + 4)
#define HANDSHAKE          22
#define CLIENT_HELLO       1
#define CLIENT_HELLO_LEAST 38 /* version, random, and three lengths */

static size_t record_bytes(const unsigned char *h)
{
	return (size_t)h[3] << 8 | h[4];
}

static bool is_record(const unsigned char *h)
{
	return h[0] == HANDSHAKE && h[1] == 3 && record_bytes(h) >= 4 + CLIENT_HELLO_LEAST &&
	       record_bytes(h) <= RECORD_MAX;
}

static bool is_hello(const unsigned char *h)
{
	size_t len = (size_t)h[6] << 16 | (size_t)h[7] << 8 | h[8];

	return h[5] == CLIENT_HELLO && len >= CLIENT_HELLO_LEAST && len + 4 <= record_bytes(h);
}

int ptc_door_hello(int fd, bool tls)
{
	unsigned char head[HEAD];
	ssize_t n = recv(fd, head, tls ? sizeof head : 1, MSG_PEEK | MSG_DONTWAIT);
	int there = 0, whole;

	if (n < 0)
		return errno != EAGAIN && errno != EINTR ? -1 : tls ? PTC_DOOR_HELLO_LEAST : 1;
	if (n == 0)
		return -1;
	if (!tls)
		return 0;
	if (head[0] != HANDSHAKE)
		return -1;
	if (n < PTC_DOOR_HELLO_LEAST)
		return PTC_DOOR_HELLO_LEAST;
	if (!is_record(head))
		return -1;
	whole = PTC_DOOR_HELLO_LEAST + (int)record_bytes(head);
	if (n < HEAD)
		return whole;
	if (!is_hello(head) || ioctl(fd, FIONREAD, &there) != 0)
		return -1;
	return there >= whole ? 0 : whole;
}
