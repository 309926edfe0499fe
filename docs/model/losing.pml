/* SPDX-License-Identifier: Apache-2.0 */
/* A switch of a job at rest, while nodes are lost and come back: which tables it may take its bytes from.
 *
 * Happy path: the nodes are cleaned, the intent is written, each node seals its table S0 as S1, COMMIT1 makes S1 the
 * record's, the target nodes pull their new tables G1 from it, STAND asks whether these are still there, COMMIT2 makes
 * them the record's; then S1 is dropped.
 * Failure modes: a node goes down at any time, comes back with its tables or without; it may be declared lost meanwhile,
 * and is then left out; one whose new table was lost before STAND pulls again, or the controller gives up; it may give
 * up anywhere before COMMIT2; another controller may take over at any time, while the one before it goes on and its
 * requests arrive late.
 *
 * What makes it dangerous: a snapshot of the running ranks (LIVE) may have come before, which was given up. What it
 * captured has the same name S1 as what the switch at rest seals, and other bytes. A node that was away since then
 * still has it.
 *
 * Region A is on nodes 0 and 2, region B on nodes 1 and 2. Targets: nodes 0 and 1; node 2 gives only.
 *
 * Sizes: -DCONTROLLERS=n, -DATTEMPTS=n switches in all, -DDOWNS=n nodes going down, -DDESTROYED=n of them lose their
 * tables.
 * Properties: the CHECKs (-DONLY=n leaves out the others). -DREACH=n: REACHED(n) is an error, because it must be
 * possible. -DBUG_x: seeded bugs. README.md says what each is for; ./check runs them all. */

#ifndef CONTROLLERS
#define CONTROLLERS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2
#endif
#ifndef DOWNS
#define DOWNS 1
#endif
#ifndef DESTROYED
#define DESTROYED 0
#endif

#define NODES      3
#define BIT(n)     (1 << (n))
#define IN(n, set) (((set) >> (n)) & 1)
#define TARGETS    3                                           /* nodes 0 and 1 */
#define HAS(n)     ((n) == 0 -> 1 : ((n) == 1 -> 2 : 3))       /* regions of a node's table, old and new; 1: A, 2: B */

#ifdef ONLY
#define CHECK(n, x) assert((n) != ONLY || (x))
#else
#define CHECK(n, x) assert(x)
#endif
#ifdef REACH
#define REACHED(n) assert((n) != REACH)
#else
#define REACHED(n) skip
#endif

#define NONE    0 /* no table; else whose bytes it has: */
#define AT_REST 1 /* .. those of S0, the last commit before */
#define CAUGHT  2 /* .. those of ranks that ran on */

mtype = { FINISH, CAPTURE, SEAL, PULL, STAND };
mtype = { DONE, LACKS, FENCED };

/* ---- what is durable ---- */

/* etcd: the record (whose table it names, on which nodes, with whose bytes), the intent, the lock */
byte lock = 1;
byte record; /* 0: S0, 1: S1, 2: G1 */
byte place = 7;
byte bytes = AT_REST;
bool live = true; /* ranks run */
byte intent;      /* 0: none, SEAL or CAPTURE: which switch is on its way */
byte intent_left; /* nodes that it leaves out */
byte attempts;
byte same; /* nodes whose keys are those that they had when they were last asked to pull */

/* nodes */
byte s0[NODES] = AT_REST;
byte s1[NODES];
byte g1[NODES];
byte seen[NODES]; /* the highest fence */
byte stood;       /* nodes that have said since they pulled that G1 is there; for P5 only */

/* ---- what is not ---- */

bool up[NODES] = true;
bool lost[NODES]; /* declared so */
byte downs, destroyed;

/* One connection for each pair of controller and node, with one request at most. */
#define PATH(f, n) (((f) - 1) * NODES + (n))
chan ask[CONTROLLERS * NODES] = [1] of { mtype, byte }; /* what; FINISH: the record's number, or 3: keep nothing */
chan say[CONTROLLERS * NODES] = [1] of { mtype };

/* ---- nodes ---- */

inline finish(n, keep)
{
	/* P4: what the record names is never dropped by anybody's request */
	CHECK(4, !IN(n, place) || record == keep || !(record == 0 -> s0[n] : (record == 1 -> s1[n] : g1[n])));
	if
	:: keep != 0 -> s0[n] = NONE
	:: else
	fi;
	if
	:: keep != 1 -> s1[n] = NONE
	:: else
	fi;
	if
	:: keep != 2 -> g1[n] = NONE
	:: else
	fi
}

/* A region from any node that the record names, is there and has the table. P2: its bytes are the record's. */
inline pull_region(n, r)
{
	if
	:: IN(0, place) && up[0] && s1[0] && (HAS(0) & r) -> from = 0
	:: IN(1, place) && up[1] && s1[1] && (HAS(1) & r) -> from = 1
	:: IN(2, place) && up[2] && s1[2] && (HAS(2) & r) -> from = 2
	:: else -> from = NODES
	fi;
	if
	:: from < NODES ->
		CHECK(2, s1[from] == bytes);
		g1[n] = s1[from]
	:: else -> answer = LACKS
	fi
}

inline handle(f, n)
{
	atomic {
		ask[PATH(f, n)]?what,keep;
		answer = DONE;
		from = 0
	}
	if
#ifndef BUG_FENCE
	:: f < seen[n] -> answer = FENCED; goto handled /* its sender no longer has the lock */
#endif
	:: else
	fi;
	seen[n] = f;
	if
	:: what == FINISH -> finish(n, keep)
	:: what == CAPTURE ->
		if
		:: s0[n] && live -> s1[n] = CAUGHT
		:: else -> answer = LACKS
		fi
	:: what == SEAL ->
		if
		:: s1[n] -> skip /* it has been sealed already */
		:: !s1[n] && s0[n] -> s1[n] = s0[n]
		:: else -> answer = LACKS
		fi
	:: what == PULL ->
		stood = stood & ~BIT(n);
		if
		:: HAS(n) & 1 -> pull_region(n, 1)
		:: else
		fi;
		if
		:: answer == DONE && (HAS(n) & 2) -> pull_region(n, 2)
		:: else
		fi
	:: what == STAND ->
		if
		:: g1[n] -> stood = stood | BIT(n)
		:: else -> answer = LACKS
		fi
	fi;
handled:
	say[PATH(f, n)]!answer;
	atomic {
		what = 0;
		keep = 0;
		answer = 0;
		from = 0
	}
}

inline forget_requests(n)
{
	f = 1;
	do
	:: f <= CONTROLLERS ->
		if
		:: ask[PATH(f, n)]?_,_
		:: empty(ask[PATH(f, n)])
		fi;
		if
		:: say[PATH(f, n)]?_
		:: empty(say[PATH(f, n)])
		fi;
		f++
	:: else -> break
	od;
	f = 0
}

proctype node(byte n)
{
	mtype what, answer;
	byte keep, from, f;

end:	do
	:: atomic { up[n] && nempty(ask[PATH(1, n)]) && empty(say[PATH(1, n)]) -> handle(1, n) }
#if CONTROLLERS > 1
	:: atomic { up[n] && nempty(ask[PATH(2, n)]) && empty(say[PATH(2, n)]) -> handle(2, n) }
#endif
#if CONTROLLERS > 2
	:: atomic { up[n] && nempty(ask[PATH(3, n)]) && empty(say[PATH(3, n)]) -> handle(3, n) }
#endif
	:: atomic { up[n] && downs < DOWNS ->
		downs++;
		up[n] = false;
		forget_requests(n)
	}
	:: atomic { !up[n] && destroyed < DESTROYED && s0[n] + s1[n] + g1[n] ->
		destroyed++;
		s0[n] = NONE;
		s1[n] = NONE;
		g1[n] = NONE;
		seen[n] = 0
	}
	:: atomic { !up[n] && !lost[n] -> lost[n] = true; same = same & ~BIT(n) } /* its key may be there until then */
	:: atomic { !up[n] -> up[n] = true; lost[n] = false; same = same & ~BIT(n) }
	od
}

/* ---- the controller ---- */

#define DISPENSABLE(n) (kind == SEAL && !IN(n, TARGETS))

/* Asks one node until it answers. Result: DONE, LACKS; 0: it is lost, or we give up. */
inline request(op, k)
{
	result = 0;
	do
	:: atomic { up[n] && empty(ask[PATH(f, n)]) && empty(say[PATH(f, n)]) && !asked ->
		ask[PATH(f, n)]!op,k;
		asked = true;
		if
		:: op == PULL && lock == f -> same = same | BIT(n)
		:: else
		fi
	}
	:: atomic { !asked && nempty(say[PATH(f, n)]) -> say[PATH(f, n)]?_ } /* to a request that was given up */
	:: atomic { asked && nempty(say[PATH(f, n)]) ->
		say[PATH(f, n)]?result;
		asked = false;
		if
		:: result == FENCED -> goto stopped
		:: else -> break
		fi
	}
	:: atomic { asked && empty(ask[PATH(f, n)]) && empty(say[PATH(f, n)]) -> asked = false } /* the node went down with it */
	:: atomic { lost[n] -> asked = false; break }
	:: atomic { may_give_up && asked -> asked = false; gave_up = true; break } /* its answer is nobody's */
	od
}

/* The record, to each node that can be reached. */
inline finish_all()
{
	n = 0;
	do
	:: n < NODES ->
		if
		:: up[n] ->
			keep = (IN(n, place) -> record : 3);
			request(FINISH, keep)
		:: !up[n]
		fi;
		n++
	:: else -> break
	od
}

proctype controller(byte f)
{
	byte n, left, sealed, keep;
	mtype kind, result;
	bool asked, may_give_up, gave_up;

begin:	/* what is written down */
	atomic {
		n = 0;
		left = 0;
		sealed = 0;
		asked = false;
		gave_up = false;
		may_give_up = false
	}
	if
	:: atomic { lock == f && record == 2 -> skip }
		finish_all();
		goto stopped
	:: atomic { lock == f && record < 2 && intent -> kind = intent; left = intent_left; goto resumed }
	:: atomic { lock == f && record == 0 && !intent && attempts < ATTEMPTS ->
		attempts++;
		kind = (live -> CAPTURE : SEAL)
	}
	:: atomic { lock == f && !intent && (record == 1 || (record == 0 && attempts == ATTEMPTS)) -> goto stopped }
	:: atomic { lock != f -> goto stopped }
	fi;

	/* CHECKING: each is cleaned of what no record names; one that is lost is left out if it only gives */
	do
	:: n < NODES ->
		if
		:: lost[n] && DISPENSABLE(n) -> left = left | BIT(n)
#ifdef BUG_UNCLEAN
		:: !lost[n]
#else
		:: !(lost[n] && DISPENSABLE(n)) ->
			keep = (IN(n, place) -> record : 3);
			request(FINISH, keep);
			if
			:: result == 0 && DISPENSABLE(n) -> left = left | BIT(n)
			:: result == 0 && !DISPENSABLE(n) -> goto begin
			:: else
			fi
#endif
		fi;
		n++
	:: else -> break
	od;
	atomic {
		if
		:: lock == f ->
			intent = kind;
#ifndef BUG_FORGOTTEN
			intent_left = left
#endif
		:: else -> goto stopped
		fi
	}

resumed:
	atomic { n = 0; may_give_up = true }
	if
	:: record == 1 -> goto preparing
	:: else
	fi;

	/* SEALING */
	do
	:: n < NODES && IN(n, left) -> n++
	:: n < NODES && !IN(n, left) ->
		request(kind, 0);
		if
		:: result == DONE -> sealed = sealed | BIT(n)
		:: result != DONE && !gave_up && kind == SEAL && (result == LACKS || DISPENSABLE(n)) -> left = left | BIT(n)
		:: else -> goto abort
		fi;
		n++
	:: else -> break
	od;

	/* AGREEING: the others have every region */
	atomic {
		n = (IN(0, sealed) -> HAS(0) : 0) | (IN(1, sealed) -> HAS(1) : 0) | (IN(2, sealed) -> HAS(2) : 0)
	}
#ifndef BUG_DISAGREE
	if
	:: n != 3 -> goto abort
	:: else
	fi;
#endif
	atomic {
		if
		:: lock == f && intent == kind && record == 0 ->
			record = 1;
			bytes = (kind == SEAL -> AT_REST : CAUGHT);
#ifdef BUG_PLACED
			place = 7;
#else
			place = sealed;
#endif
			/* P1: all regions are there, on nodes that could give them; one whose store went since gives none */
			CHECK(1, n == 3);
			CHECK(1, !s1[0] || !IN(0, place) || s1[0] == bytes);
			CHECK(1, !s1[1] || !IN(1, place) || s1[1] == bytes);
			CHECK(1, !s1[2] || !IN(2, place) || s1[2] == bytes);
			if
			:: kind == CAPTURE -> intent = 0; intent_left = 0; goto stopped /* a snapshot ends here */
			:: else ->
				if
				:: left && s1[2] == CAUGHT -> REACHED(1)
				:: else
				fi
			fi
		:: else -> goto stopped
		fi
	}

preparing:
	n = 0;
	do
	:: n < NODES && !IN(n, TARGETS) -> n++
	:: n < NODES && IN(n, TARGETS) ->
		request(PULL, 0);
		if
		:: result != DONE -> goto abort
		:: else
		fi;
		n++
	:: else -> break
	od;
#ifndef BUG_UNSTOOD
	/* DIGESTING: what was pulled is still there; what is not is pulled again, or the switch given up */
	n = 0;
	do
	:: n < NODES && !IN(n, TARGETS) -> n++
	:: n < NODES && IN(n, TARGETS) ->
		request(STAND, 0);
		if
		:: result == LACKS -> REACHED(3); goto preparing
		:: result != DONE -> goto abort
		:: else
		fi;
		n++
	:: else -> break
	od;
#endif
	atomic {
		if
#ifndef BUG_UNCOMPARED
		:: lock == f && intent == SEAL && record == 1 && same != TARGETS -> goto preparing
		:: lock == f && intent == SEAL && record == 1 && same == TARGETS ->
#else
		:: lock == f && intent == SEAL && record == 1 ->
#endif
			record = 2;
			place = TARGETS;
			intent = 0;
			intent_left = 0;
			/* P3: what the record names has the bytes of the last commit */
			CHECK(3, !g1[0] || g1[0] == bytes);
			CHECK(3, !g1[1] || g1[1] == bytes);
			/* P5: S1 is dropped next, so these are there; one that is not was lost after STAND, under the same key */
			CHECK(5, g1[0] || IN(0, stood & same));
			CHECK(5, g1[1] || IN(1, stood & same));
			same = 0;
			stood = 0;
			if
			:: f > 1 && attempts > 1 -> REACHED(2)
			:: else
			fi
		:: else -> goto stopped
		fi
	}
	may_give_up = false;
	asked = false;
	finish_all();
	goto stopped;

abort:	/* CLEAR, then the record to each; ranks that were to be captured are given up now and then */
	atomic { may_give_up = false; asked = false }
	atomic {
		if
		:: lock == f -> intent = 0; intent_left = 0; same = 0; stood = 0
		:: else -> goto stopped
		fi;
		if
		:: live -> live = false
		:: true
		fi
	}
	goto begin; /* it cleans before it begins anything */

stopped:
	skip
}

init
{
	byte f = 1;

	atomic {
		run node(0);
		run node(1);
		run node(2);
		run controller(1)
	}
	do /* another one takes over; the one before it may not know */
	:: atomic { f < CONTROLLERS -> f++; lock = f; run controller(f) }
	:: break
	od
}
