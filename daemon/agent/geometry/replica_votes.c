/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the votes of ranks that hold the same part of a tensor. Happy path: all digests are equal. Failure modes: no
 * digest has more than half of the votes. A group has as many ranks as there are replicas, so pairs are compared. */
#include "daemon/agent/geometry/replica_votes.h"

static size_t votes_for(const struct ptc_replica_vote *v, size_t n, uint64_t digest)
{
	size_t votes = 0;

	for (size_t i = 0; i < n; i++)
		votes += !v[i].unknown && v[i].digest == digest;
	return votes;
}

static const struct ptc_replica_vote *lowest(const struct ptc_replica_vote *v, size_t n)
{
	const struct ptc_replica_vote *low = v;

	for (size_t i = 1; i < n; i++)
		if (v[i].rank < low->rank)
			low = &v[i];
	return low;
}

static bool right_digest(const struct ptc_replica_vote *v, size_t n, bool primary, uint64_t *ret)
{
	if (primary) { /* the lowest rank of a node has the node's digest */
		*ret = lowest(v, n)->digest;
		return true;
	}
	for (size_t i = 0; i < n; i++) {
		if (v[i].unknown || votes_for(v, n, v[i].digest) * 2 <= n)
			continue;
		*ret = v[i].digest;
		return true;
	}
	return false;
}

bool ptc_replica_votes(struct ptc_replica_vote *v, size_t n, bool primary, size_t *ret_nodd)
{
	uint64_t right;

	*ret_nodd = 0;
	for (size_t i = 0; i < n; i++)
		v[i].odd = false;
	if (!right_digest(v, n, primary, &right))
		return false;
	for (size_t i = 0; i < n; i++) {
		v[i].odd = v[i].unknown == (v[i].digest == right);
		*ret_nodd += v[i].odd;
	}
	return true;
}
