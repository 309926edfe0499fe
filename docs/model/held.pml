/* SPDX-License-Identifier: Apache-2.0 */
/* The recovery of a job whose ranks run, after the loss of a node: ranks that are left are held, their memory becomes
 * the snapshot, and the job starts again.
 *
 * Happy path: nodes hold their ranks and say at which step each is; the controller chooses a step at which these have
 * every region, and lets ranks on to it if need be. Then come the switch's phases: the nodes that give are cleaned, the
 * intent has the step, each node captures its rank as S1 in two halves, with a look at the rank before and after;
 * COMMIT1 compares the keys of the nodes that gave, makes S1 the record's, and says that the ranks are given up. FINISH
 * ends them; the job starts again.
 * Failure modes: a node goes down at any time, with its rank or without, and may come back, also with an empty store; a
 * hold ends by itself; ranks fail; a rank's update ends late; what is left lacks a region, or the switch is aborted:
 * then HALT gives the ranks up, and S0 has to do. Another controller may take over at any time, while the one before
 * goes on with what it has read, and its requests arrive late.
 *
 * One rank on each node. Region A is on nodes 0 and 2, region B on nodes 1 and 2. S0 is of step 0, ranks are at step 1
 * to LAST. They are never more than one step apart, because each needs all others' gradients. One node is lost in the
 * beginning; before that there is nothing to do. Node 0 may have a table of a snapshot that was given up.
 *
 * Sizes: -DCONTROLLERS=n, -DATTEMPTS=n snapshots of held ranks, -DDOWNS=n nodes going down, -DDESTROYED=n of them lose
 * their tables, -DOVERS=n holds end by themselves, -DLAST=n. -DVICTIM=n is the node that is lost in the
 * beginning; without it, any is.
 * Properties: the CHECKs (-DONLY=n leaves out the others). -DREACH=n: REACHED(n) is an error, because it must be
 * possible. -DBUG=BUG_x: a seeded bug. held.md says what each is for; ./check runs them all. */

#ifndef CONTROLLERS
#define CONTROLLERS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1
#endif
#ifndef DOWNS
#define DOWNS 1
#endif
#ifndef DESTROYED
#define DESTROYED 0
#endif
#ifndef OVERS
#define OVERS 1
#endif
#ifndef LAST
#define LAST 2
#endif

#define NODES       3
#define ALL         7
#define BIT(n)      (1 << (n))
#define IN(n, set)  (((set) >> (n)) & 1)
#define PUT(n, set) set = set | BIT(n)
#define CUT(n, set) set = set & ~BIT(n)
#define HAS(n)      ((n) == 0 -> 1 : ((n) == 1 -> 2 : 3)) /* regions of a node; 1: A, 2: B */
#define COVER(set)  ((IN(0, set) -> HAS(0) : 0) | (IN(1, set) -> HAS(1) : 0) | (IN(2, set) -> HAS(2) : 0))

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

#ifndef BUG
#define BUG 0
#endif
#define BUG_STEP         1
#define BUG_UPDATE       2
#define BUG_ONE_LOOK     3
#define BUG_LET_ON_EARLY 4
#define BUG_PLACE        5
#define BUG_COVER        6
#define BUG_COMPARE      7
#define BUG_FENCE        8
#define BUG_NOT_ENDED    9
#define BUG_NOT_TOLD     10
#define BUG_OLD_TABLE    11
#define BUG_KEYS         12

#define TORN  7 /* bytes of no step */
#define OTHER 3

mtype = { HOLD, LET_GO, FINISH, CAPTURE };
mtype = { DONE, LACKS, FENCED };
mtype = { LIVE, GIVEN_UP, AGAIN };

/* ---- what is durable ---- */

/* etcd. The record: whether S1 is its snapshot, of which step, on which nodes; what its ranks do (AGAIN: others train)
 */
byte lock = 1;
bool record;
byte at; /* its step */
byte place = ALL;
mtype ranks = LIVE;
byte intent; /* the attempt under way; 0: none */
byte intent_stop;
byte intent_left;
byte attempts;

/* nodes */
byte s0 = ALL;
byte s1[NODES];   /* 0: none; else the step of its bytes, or TORN */
byte s1by[NODES]; /* the attempt that has captured it; OTHER: a snapshot of before, which was given up */
byte seen[NODES]; /* the highest fence */

/* ---- what is not ---- */

byte up = ALL, downs, destroyed, overs;
byte gone;   /* nodes whose tables were destroyed; for CHECK only */
byte missed; /* nodes that have been down since their last FINISH; for CHECK only */
byte half[NODES], half_by[NODES]; /* of a capture: the step of its first half, or TORN; for which fence */
byte same[CONTROLLERS]; /* nodes that have the key under which they last answered that controller */

/* ranks; each is whole at `step`, or in the update to the next */
byte alive = ALL, held, updates;
byte ready;  /* has all that it needs of the others */
byte let_on; /* for BUG_LET_ON_EARLY only */
byte step[NODES] = 1;

#define PATH(f, n) (((f) - 1) * NODES + (n))
chan ask[CONTROLLERS * NODES] = [1] of { mtype, byte };
chan say[CONTROLLERS * NODES] = [1] of { mtype, byte };

/* ---- ranks ---- */

#define ALL_AT(s) (alive == ALL && step[0] >= (s) && step[1] >= (s) && step[2] >= (s))
#define LET(n)    (!IN(n, held)) /* no update begins while it is held */

inline dies(n)
{
	CUT(n, alive);
	CUT(n, ready);
	CUT(n, updates);
	CUT(n, let_on);
	step[n] = 0
}

/* ---- nodes ---- */

inline finish(n, keep, ends)
{
	/* P4: what the record names is never dropped by anybody's request */
	CHECK(4, !IN(n, place) || record == keep || !(record -> s1[n] : IN(n, s0)));
	if
	:: keep != 0 -> CUT(n, s0)
	:: else
	fi;
	if
	:: keep != 1 -> s1[n] = 0; s1by[n] = 0
	:: else
	fi;
	if
	:: ends ->
		if
		:: ranks == AGAIN && IN(n, alive) -> REACHED(5) /* it comes too late for the start */
		:: else
		fi;
		dies(n);
		CUT(n, held)
	:: else
	fi;
	CUT(n, missed)
}

/* What its rank gives when it is read now. */
#define BYTES(n) (IN(n, updates) -> TORN : step[n])
#define COUNTS(n)       (BUG == BUG_LET_ON_EARLY && IN(n, let_on))
#define AT(n, stop)     (BUG == BUG_STEP || step[n] == (stop))
#define WHOLE(n)        (BUG == BUG_UPDATE || !IN(n, updates))
#define GIVES(n, stop)  (IN(n, alive) && IN(n, held) && (COUNTS(n) || (AT(n, stop) && WHOLE(n))))
#define STILL(n, stop)  (BUG == BUG_ONE_LOOK || GIVES(n, stop))
#define CAPTURED(n, id) (s1[n] && (BUG == BUG_OLD_TABLE || s1by[n] == (id)))

/* Ranks at the step before `to` that have their gradients end it, or are late. */
inline hold(n, to)
{
	if
	:: !IN(n, alive) -> answer = LACKS
	:: else ->
		PUT(n, held);
		if
		:: IN(n, updates) -> answer = LACKS
		:: !IN(n, updates) && to && step[n] + 1 == to && IN(n, ready) ->
			CUT(n, ready);
			if
			:: step[n] = to; got = to
			:: BUG != BUG_LET_ON_EARLY -> PUT(n, updates); answer = LACKS
			:: BUG == BUG_LET_ON_EARLY -> PUT(n, updates); PUT(n, let_on); got = to
			fi
		:: else -> got = step[n]
		fi
	fi
}

inline handle(f, n)
{
	ask[PATH(f, n)]?<what,arg>;
	answer = DONE;
	got = 0;
	if
	:: BUG != BUG_FENCE && f < seen[n] -> answer = FENCED; goto answers /* its sender no longer has the lock */
	:: else
	fi;
	seen[n] = f;
	if
	:: what == HOLD -> hold(n, arg)
	:: what == LET_GO -> CUT(n, held)
	:: what == FINISH -> finish(n, (arg & 3), (arg >> 2))
	:: what == CAPTURE && CAPTURED(n, arg >> 2) /* it has been captured already */
	:: what == CAPTURE && !CAPTURED(n, arg >> 2) ->
		if
		:: half[n] && half_by[n] == f && STILL(n, arg & 3) ->
			s1[n] = (half[n] == BYTES(n) -> half[n] : TORN);
			s1by[n] = arg >> 2
		:: half[n] && half_by[n] == f && !STILL(n, arg & 3) -> answer = LACKS
		:: (!half[n] || half_by[n] != f) && !GIVES(n, arg & 3) ->
			answer = LACKS;
			s1[n] = 0;
			s1by[n] = 0
		:: (!half[n] || half_by[n] != f) && GIVES(n, arg & 3) ->
			s1[n] = 0;
			s1by[n] = 0;
			half[n] = BYTES(n);
			half_by[n] = f;
			goto handled
		fi
	fi;
	half[n] = 0;
	half_by[n] = 0;
answers:
	ask[PATH(f, n)]?_,_;
	say[PATH(f, n)]!answer,got;
handled:
	what = 0;
	arg = 0;
	answer = 0;
	got = 0
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
		:: say[PATH(f, n)]?_,_
		:: empty(say[PATH(f, n)])
		fi;
		CUT(n, same[f - 1]);
		f++
	:: else -> break
	od;
	f = 0;
	half[n] = 0;
	half_by[n] = 0
}

proctype node(byte n)
{
	mtype what, answer;
	byte arg, got, f;

end:	do
	:: atomic { IN(n, up) && nempty(ask[PATH(1, n)]) && empty(say[PATH(1, n)]) -> handle(1, n) }
#if CONTROLLERS > 1
	:: atomic { IN(n, up) && nempty(ask[PATH(2, n)]) && empty(say[PATH(2, n)]) -> handle(2, n) }
#endif

	/* its rank */
	:: atomic { IN(n, alive) && LET(n) && !IN(n, ready) && !IN(n, updates) && step[n] < LAST && ALL_AT(step[n]) ->
		CHECK(5, ranks != AGAIN); /* once others train, no rank of before goes on with its peers */
		PUT(n, ready)
	}
	:: atomic { IN(n, ready) && LET(n) -> CUT(n, ready); PUT(n, updates) }
	:: atomic { IN(n, updates) -> CUT(n, updates); CUT(n, let_on); step[n] = step[n] + 1 }
	:: atomic { IN(n, alive) && alive != ALL && LET(n) -> /* its peers are gone: it fails */
		dies(n)
	}
	:: atomic { IN(n, alive) && IN(n, up) && alive != ALL && LET(n) && overs == OVERS -> PUT(n, held) } /* about to */
	:: atomic { IN(n, held) && overs < OVERS -> overs++; CUT(n, held) }

	/* ptcd, its machine, its store */
	:: atomic { IN(n, up) && downs < DOWNS ->
		downs++;
		CUT(n, up);
		PUT(n, missed);
		CUT(n, held);
		forget_requests(n);
		if
		:: dies(n)
		:: true
		fi
	}
	:: atomic { !IN(n, up) && destroyed < DESTROYED && !IN(n, alive) && (IN(n, s0) || s1[n]) ->
		destroyed++;
		CUT(n, s0);
		s1[n] = 0;
		s1by[n] = 0;
		seen[n] = 0;
		PUT(n, gone)
	}
	:: atomic { !IN(n, up) ->
		PUT(n, up);
		seen[n] = (seen[n] > lock -> seen[n] : lock)
	}
	od
}

/* ---- the controller ---- */

#define ENDS (BUG == BUG_NOT_ENDED -> 0 : 4) /* FINISH ends the ranks */

/* Asks one node until it answers. Result: DONE, LACKS; 0: it is lost, or we give up. */
inline request(op, k)
{
	result = 0;
	do
	:: atomic { IN(n, up) && empty(ask[PATH(f, n)]) && empty(say[PATH(f, n)]) && !asked ->
		ask[PATH(f, n)]!op,k;
		asked = true
	}
	:: atomic { !asked && nempty(say[PATH(f, n)]) -> say[PATH(f, n)]?_,_ } /* to a request that was given up */
	:: atomic { asked && nempty(say[PATH(f, n)]) ->
		say[PATH(f, n)]?result,got;
		PUT(n, same[f - 1]);
		asked = false;
		if
		:: result == FENCED -> goto stopped
		:: else -> break
		fi
	}
	:: atomic { asked && empty(ask[PATH(f, n)]) && empty(say[PATH(f, n)]) -> asked = false } /* it went down with it */
	:: atomic { !IN(n, up) -> asked = false; break } /* it is lost */
	:: atomic { may_give_up && asked -> asked = false; gave_up = true; break } /* its answer is nobody's */
	od
}

/* Each node that can be reached is told what the record says, as we know it. */
inline finish_all()
{
	n = 0;
	do
	:: n < NODES ->
		if
		:: IN(n, up) && (BUG != BUG_NOT_TOLD || IN(n, its)) ->
			arg = (IN(n, its) -> rec : 2) | (now == LIVE -> 0 : ENDS);
			request(FINISH, arg)
		:: else
		fi;
		n++
	:: else -> break
	od;
	atomic { n = 0; arg = 0; got = 0; result = 0 }
}

/* The greatest step after the record's at which held ranks have every region: stop, gives. Else to: ranks at the step
 * before can be let on to it. */
inline choose()
{
	d_step {
		stop = LAST + 1;
		gives = 0;
		do
		:: stop > at + 1 && COVER(gives) != 3 ->
			stop--;
			gives = (at_step[0] == stop -> 1 : 0) | (at_step[1] == stop -> 2 : 0) | (at_step[2] == stop -> 4 : 0)
		:: else -> break
		od;
		if
		:: COVER(gives) == 3 -> to = 0
		:: else ->
			stop = 0;
			gives = 0;
			if
			:: to -> to = 0 /* they were let on before */
			:: else ->
				to = (at_step[0] > at_step[1] -> at_step[0] : at_step[1]);
				to = (at_step[2] > to -> at_step[2] : to);
				n = (at_step[0] && at_step[0] + 1 >= to -> 1 : 0) |
				    (at_step[1] && at_step[1] + 1 >= to -> 2 : 0) |
				    (at_step[2] && at_step[2] + 1 >= to -> 4 : 0);
				to = (COVER(n) == 3 -> to : 0);
				n = 0
			fi
		fi
	}
}

proctype controller(byte f)
{
	byte n, id, stop, to, gives, gave, its, arg, got;
	byte at_step[NODES]; /* of ranks that are held; 0: it is not */
	mtype result, now;
	bool rec, asked, may_give_up, gave_up, resumes, on;

begin:	/* what is written down */
	atomic {
		n = 0; id = 0; stop = 0; to = 0; gives = 0; gave = 0; arg = 0; got = 0;
		asked = false; may_give_up = false; gave_up = false; resumes = false; on = false;
		if
		:: lock != f -> goto stopped
		:: else
		fi;
		rec = record; its = place; now = ranks
	}
	if
	:: now == AGAIN -> finish_all(); goto stopped
	:: now == GIVEN_UP -> finish_all(); goto again
	:: atomic { now == LIVE && lock == f && intent ->
		id = intent; stop = intent_stop; gives = ALL & ~intent_left;
		resumes = true;
		goto sealing
	}
	:: atomic { now == LIVE && lock == f && !intent && attempts < ATTEMPTS && (up != ALL || alive != ALL) -> skip }
	:: atomic { now == LIVE && lock == f && !intent && (up != ALL || alive != ALL) -> goto halt } /* no rank promises */
	:: atomic { now == LIVE && lock == f && !intent && up == ALL && alive == ALL -> goto stopped } /* it is back */
	:: atomic { lock != f -> goto stopped }
	fi;

holding:
	n = 0;
	do
	:: n < NODES && IN(n, up) ->
		request(HOLD, to);
		at_step[n] = (result == DONE -> got : 0);
		n++
	:: n < NODES -> at_step[n] = 0; n++ /* down, or waited for no longer */
	:: n == NODES -> break
	od;
	atomic {
		n = 0;
		got = 0;
		if
		:: !to && at_step[0] && at_step[1] && at_step[0] != at_step[1] -> REACHED(4)
		:: else
		fi
	}
	choose();
	if
	:: stop || to
	:: !stop && !to -> goto halt
	:: up == ALL -> goto let_go /* the node is back */
	fi;
	if
	:: to -> on = true; goto holding
	:: else
	fi;
	atomic { at_step[0] = 0; at_step[1] = 0; at_step[2] = 0 }

	/* CHECKING: those that give are cleaned of what no record names */
	do
	:: n < NODES && (!IN(n, gives) || BUG == BUG_OLD_TABLE) -> n++
	:: n < NODES && IN(n, gives) && BUG != BUG_OLD_TABLE ->
		arg = (IN(n, its) -> rec : 2);
		request(FINISH, arg);
		if
		:: result == 0 -> CUT(n, gives)
		:: else
		fi;
		n++
	:: n == NODES -> break
	od;
	atomic {
		n = 0; arg = 0; got = 0;
		if
		:: lock == f && ranks == LIVE && record == rec && !intent && attempts < ATTEMPTS ->
			attempts++;
			id = attempts;
			intent = id;
			intent_stop = stop;
			intent_left = ALL & ~gives
		:: lock == f && attempts == ATTEMPTS -> goto halt
		:: lock != f -> goto stopped
		fi
	}

sealing:
	atomic { n = 0; may_give_up = true }
	do
	:: n < NODES && !IN(n, gives) -> n++
	:: n < NODES && IN(n, gives) ->
		arg = stop | (id << 2);
		request(CAPTURE, arg);
		if
		:: result == DONE -> PUT(n, gave)
		:: result != DONE && gave_up -> goto abort
		:: else /* it is left out */
		fi;
		n++
	:: n == NODES -> break
	od;

	/* AGREEING, COMMIT1 */
	if
	:: COVER(gave) != 3 && BUG != BUG_COVER -> goto abort
	:: else
	fi;
	atomic {
		n = 0; arg = 0; got = 0; result = 0; may_give_up = false;
		if
		:: BUG != BUG_KEYS && BUG != BUG_COMPARE && lock == f && intent == id && (gave & ~same[f - 1]) ->
			REACHED(6); /* one that gave has another key now: all are asked again */
			gave = 0;
			goto sealing
		:: BUG == BUG_COMPARE || (lock == f && ranks == LIVE && intent == id &&
					  (BUG == BUG_KEYS || !(gave & ~same[f - 1]))) ->
			CHECK(3, ranks == LIVE && stop > at);
			record = 1;
			at = stop;
			place = (BUG == BUG_PLACE -> ALL : gave);
			ranks = GIVEN_UP;
			intent = 0; intent_stop = 0; intent_left = 0;
			/* P1, P2: what it names is there, but for what was destroyed, and of that step; it is all */
			CHECK(1, !IN(0, place) || s1[0] == stop || IN(0, gone));
			CHECK(1, !IN(1, place) || s1[1] == stop || IN(1, gone));
			CHECK(1, !IN(2, place) || s1[2] == stop || IN(2, gone));
			CHECK(2, COVER(place) == 3);
			if
			:: on -> REACHED(1)
			:: else
			fi;
			if
			:: resumes -> REACHED(2)
			:: else
			fi;
			if
			:: gave != gives -> REACHED(3)
			:: else
			fi;
			/* P7: what the snapshot before has is not given up for what is nowhere */
			n = (s1[0] -> 1 : 0) | (s1[1] -> 2 : 0) | (s1[2] -> 4 : 0);
			CHECK(7, COVER(n & place) == 3 || COVER(s0) != 3);
			n = 0;
			rec = 1; now = GIVEN_UP
		:: else -> goto stopped
		fi
	}
	its = gave;
	finish_all();
	goto again;

abort:
	atomic {
		may_give_up = false; gave_up = false; asked = false; n = 0;
		if
		:: lock == f && intent == id -> intent = 0; intent_stop = 0; intent_left = 0
		:: else -> goto stopped
		fi
	}
	finish_all();

halt:	/* the last snapshot has to do */
	atomic {
		if
		:: lock == f && ranks == LIVE && !intent -> ranks = GIVEN_UP; now = GIVEN_UP
		:: else -> goto stopped
		fi
	}
	finish_all();

again:	/* the job starts where nodes are up, once they have the snapshot, and their old ranks have ended */
	atomic {
		n = 0; gave = 0;
		if
		:: gives = up & its
		:: gives = up
		fi
	}
	do
	:: n < NODES && !IN(n, gives) -> n++
	:: n < NODES && IN(n, gives) ->
		arg = (IN(n, its) -> rec : 2) | ENDS;
		request(FINISH, arg);
		if
		:: result == 0 -> goto begin
		:: else
		fi;
		n++
	:: n == NODES -> break
	od;
	atomic {
		n = 0; arg = 0; got = 0; result = 0;
		gave = (rec -> (s1[0] -> 1 : 0) | (s1[1] -> 2 : 0) | (s1[2] -> 4 : 0) : s0) & its & up;
		if
		:: lock == f && ranks == GIVEN_UP && record == rec && gives && COVER(gave) == 3 ->
			/* P5: no old rank is on a node that gets new ones */
			CHECK(5, !(alive & gives));
			/* P6: nor on another that was told, nor a table that the record does not name */
			CHECK(6, !(alive & up & ~missed));
			CHECK(6, !((rec -> s0 : (s1[0] -> 1 : 0) | (s1[1] -> 2 : 0) | (s1[2] -> 4 : 0)) & up & ~missed));
			ranks = AGAIN; now = AGAIN
		:: else -> goto stopped /* the job waits for who has the bytes */
		fi
	}
	finish_all();
	goto stopped;

let_go:
	n = 0;
	do
	:: n < NODES && !IN(n, up) -> n++
	:: n < NODES && IN(n, up) -> request(LET_GO, 0); n++
	:: n == NODES -> break
	od;

stopped:
	skip
}

/* Before the loss only ranks move. So it begins with one, at any moment of a step. */
init
{
	byte n, f = 1;

	atomic {
		do
		:: n < NODES ->
			if
			:: PUT(n, ready)
			:: step[n] = 2
			:: PUT(n, updates)
			:: true
			fi;
			n++
		:: else -> break
		od;
		if
		:: step[0] == 2 -> s1[0] = 1; s1by[0] = OTHER
		:: true
		fi;
#ifdef VICTIM
		n = VICTIM;
#else
		if
		:: n = 2
		:: n = 1
		:: n = 0
		fi;
#endif
		downs = 1;
		CUT(n, up);
		PUT(n, missed);
		if
		:: dies(n)
		:: true
		fi;
		n = 0;
		run node(0);
		run node(1);
		run node(2);
		run controller(1)
	}
#if CONTROLLERS > 1
	if /* another one takes over; the one before it may not know */
	:: atomic { f < CONTROLLERS -> f++; lock = f; run controller(f) }
	:: true
	fi
#endif
}
