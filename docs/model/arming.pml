/* SPDX-License-Identifier: Apache-2.0 */
/* Arming: how ranks that never talk to each other are stopped at one step, so that their shards can be sealed together.
 *
 * Happy path: the controller sends ARM(S); every node sets its ranks' stop words to S and finds no rank there yet; the
 * ranks stop at S and say so; when all have, the controller sends SEAL, and the switch is sealed. A rank that was
 * already at p >= S is stopped at p+1 instead; then a second round (STOP) brings everyone to max(p)+1.
 * Failure modes: a rank that closes or dies makes the switch finished; the controller may give up at any time; in both
 * cases RELEASE clears the stop words and the ranks run on.
 *
 * Nothing holds ranks together here: one may do all its steps before another does its first.
 *
 * Sizes: three ranks (-DTWO_RANKS: one on each node), -DLAST=n steps per rank, -DDEATHS=n ranks that may be killed,
 * -DATTEMPTS=n switches one after the other.
 * -DGIVE_UP: the controller may give up. Without it, what ends does so by the protocol and not by a timeout.
 * Properties: the CHECKs (-DONLY=n leaves out the others); no invalid end state, so nothing waits for ever; no cycle
 * (pan -l), so everything ends. -DREACH=n: REACHED(n) is an error, because it must be possible. -DBUG_x: seeded bugs.
 * README.md says what each is for; ./check runs them all. */

#ifndef LAST
#define LAST 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1
#endif

#define RANKS    3
#define NODES    2
#define FIRST(n) ((n) * 2) /* node 0 has ranks 0 and 1, node 1 has rank 2 */
#ifdef TWO_RANKS           /* rank 1 does not exist */
#define END(n) (1 + 2 * (n))
#define ALL(x) (x[0] == final && x[2] == final)
#else
#define END(n) (2 + (n))
#define ALL(x) (x[0] == final && x[1] == final && x[2] == final)
#endif
#define ANY(x) (x[0] || x[1] || x[2])
#define NONE   255 /* stop word: nothing is pending */

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

mtype = { ARM, STOP, SEAL, RELEASE };      /* to a node, which handles them in order; ARM and STOP carry a step */
mtype = { BUSY, ARMED, SEALED, RELEASED }; /* from a node: the last thing it has done */

/* Shared memory, one page per rank: the rank writes step and reads stop, its daemon the reverse. */
byte step[RANKS];
byte stop[RANKS] = NONE;

/* A rank's socket. What it sent last stays, also what it sent for a stop that no longer holds: the daemon may be late,
 * and messages of an earlier attempt may still be on their way. */
byte said[RANKS]; /* "I stopped at this step" */
bool gone[RANKS]; /* end of file */

/* Between the nodes and the controller. */
chan to_node[NODES] = [4] of { mtype, byte }; /* kind, step */
mtype did[NODES] = BUSY;
byte armed_at[NODES]; /* the highest stop word a node had to set */

/* What only the properties look at. */
bool running[RANKS];   /* past a boundary and not yet at the next one: it may be changing its state */
byte sealed_at[RANKS]; /* the step of its sealed shard, 0 none */
byte final;            /* the step all are to stop at, once that is settled and until they are released; else 0 */
byte deaths;
bool over;             /* after the last attempt: ranks close at their next boundary, what they do is of no interest */
bool dropped;          /* the attempt was given up: what is sealed now is thrown away */

/* x86-TSO: a plain store waits in the core's store buffer and becomes visible to others later, in order; an exchange
 * takes effect at once. A core that only uses the exchange has an empty buffer, which is left out. */
#ifdef BUG_PLAIN_STEP
chan step_buffer[RANKS] = [2] of { byte };
#define PUBLISH(r, s) step_buffer[r]!s

proctype step_drain(byte r)
{
end:	do
	:: step_buffer[r]?step[r]
	od
}
#else
#define PUBLISH(r, s) step[r] = s
#endif

#ifdef BUG_PLAIN_STOP
chan stop_buffer[NODES] = [2] of { byte, byte };
#define SET_STOP(n, r, s) stop_buffer[n]!r,s

proctype stop_drain(byte n)
{
	byte r, s;

end:	do
	:: d_step { stop_buffer[n]?r,s; stop[r] = s; r = 0; s = 0 }
	od
}
#else
#define SET_STOP(n, r, s) stop[r] = s
#endif

/* ---- a training process ---- */

/* P2: nobody passes the step at which all are to stop, or gets beyond it in the first place. */
inline publish()
{
	s++;
	running[r] = false;
	CHECK(2, !final || s <= final);
	PUBLISH(r, s)
}

inline pass()
{
	running[r] = true;
	CHECK(2, !final || s < final)
}

/* By SIGKILL, between any two of its instructions. */
inline killed()
{
	atomic { deaths < DEATHS -> deaths++; break }
}

proctype rank(byte r)
{
	byte s;

	do
	:: atomic { s < LAST && !over -> publish() }; /* ptc_boundary(s): publish its step, */
		if /* then read the stop word. */
		:: atomic { stop[r] > s -> pass() }
		:: atomic { stop[r] <= s -> said[r] = s };
			if /* It waits in here; its daemon lets it go by moving the stop word. */
			:: atomic { stop[r] > s -> pass() }
			:: killed()
			fi
		:: killed()
		fi
	:: atomic { s == LAST || over -> break } /* it closes and exits */
	:: killed()
	od;
	atomic { running[r] = false; gone[r] = true; s = 0 }
}

/* ---- a node's daemon ---- */

/* One atomic block is one access to what a rank may change at the same time. Accesses to different ranks' pages commute
 * (ranks share nothing), so that one block may hold the last access to one page and the first to the next. */

inline begin_rank()
{
	s = t;
	if
	:: r < END(n) -> SET_STOP(n, r, s)
	:: else
	fi
}

/* Round 1. The stop word is set before the step is read, and the rank publishes its step before it reads the word: one
 * of the two sees the other. The rank may run on meanwhile, so each new word needs the look again. */
inline arm_ranks()
{
	atomic { r = FIRST(n); begin_rank() };
	do
	:: atomic { r < END(n) && step[r] < s -> /* it will stop at s */
		if
		:: s > armed_at[n] -> armed_at[n] = s
		:: else
		fi;
		r++;
		begin_rank() }
	:: atomic { r < END(n) && step[r] >= s -> /* it may have passed, by now even further */
		if
		:: s > t -> REACHED(3)
		:: else
		fi;
		s = step[r] + 1;
		SET_STOP(n, r, s) }
	:: atomic { r == END(n) -> did[n] = ARMED; r = 0; s = 0; t = 0; break }
	od
}

inline set_all(value)
{
	r = FIRST(n);
	do
	:: r < END(n) -> SET_STOP(n, r, value); r++
	:: else -> break
	od;
	r = 0
}

/* Reads one rank's memory. One instant stands for the whole copy: only this daemon could let the rank run, and it does
 * nothing else meanwhile. */
inline seal_rank(x)
{
	/* P3: its state does not change under us. */
	CHECK(3, !running[x]);
	/* P4: nobody else's does, unless what we seal is thrown away. */
	CHECK(4, dropped || !ANY(running));
	sealed_at[x] = step[x]
}

proctype node(byte n)
{
	byte r, s, t;

end:	do
	:: to_node[n]?ARM,t ->
		arm_ranks();
#ifdef BUG_SEAL_OWN
		/* Its own ranks have answered: why wait for the others? */
		if
		:: atomic { said[FIRST(n)] == stop[FIRST(n)] -> seal_rank(FIRST(n)) }
		:: nempty(to_node[n])
		fi
#endif
	:: atomic { to_node[n]?STOP,t -> set_all(t); t = 0 }
	:: atomic { to_node[n]?SEAL,t -> r = FIRST(n) };
		do
		:: atomic { r < END(n) && !gone[r] && !sealed_at[r] -> seal_rank(r); r++ }
		:: atomic { r < END(n) && sealed_at[r] -> r++ }
		:: atomic { r < END(n) && gone[r] && !sealed_at[r] -> r = 0; t = 0; break } /* no memory left to read */
		:: atomic { r == END(n) -> did[n] = SEALED; r = 0; t = 0; break }
		od
#ifdef BUG_POLL
	:: gone[FIRST(n)] /* as level-triggered poll() does with a socket at its end of file */
#endif
	:: atomic { to_node[n]?RELEASE,_ ->
#ifndef BUG_NO_RELEASE
		set_all(NONE);
#endif
		did[n] = RELEASED }
	od
}

/* ---- the controller ---- */

#ifdef BUG_ROUND_TWO_LOW
#define ROUND_TWO(highest) (highest - 1)
#else
#define ROUND_TWO(highest) highest
#endif

#ifdef BUG_EARLY_SEAL
#define ANSWERED true
#else
#define ANSWERED ALL(said)
#endif

inline tell_nodes(kind, at)
{
	to_node[0]!kind,at;
	to_node[1]!kind,at
}

inline settle()
{
	final = (armed_at[0] > armed_at[1] -> armed_at[0] : armed_at[1]);
	if
	:: final > wanted -> /* somebody passed */
		final = ROUND_TWO(final);
#ifndef BUG_ONE_ROUND
		tell_nodes(STOP, final)
#endif
	:: else
	fi;
	/* P1: nobody is past the step at which all are to stop. */
	CHECK(1, step[0] <= final && step[1] <= final && step[2] <= final)
}

inline succeed()
{
	/* P5: what is sealed is one step's state, whole. */
	CHECK(5, ALL(sealed_at));
	if
	:: final == wanted -> REACHED(1)
	:: else -> REACHED(2)
	fi;
	if
	:: gave_up -> REACHED(5)
	:: else
	fi
}

proctype controller()
{
	byte attempts, wanted;
	bool asked, ok, gave_up;

	do
	:: attempts < ATTEMPTS ->
		atomic {
			attempts++;
			select(wanted : 1 .. LAST + 1); /* ranks are anywhere by now; the last is never reached */
			tell_nodes(ARM, wanted)
		};
		do
		:: atomic { !final && did[0] == ARMED && did[1] == ARMED -> settle() }
		:: atomic { !asked && final && ANSWERED -> asked = true; tell_nodes(SEAL, 0) }
		:: atomic { did[0] == SEALED && did[1] == SEALED -> succeed(); ok = true; break }
		:: atomic { ANY(gone) -> /* the switch is finished */
			if
			:: asked -> REACHED(4)
			:: else
			fi;
			break }
#ifdef GIVE_UP
		:: break /* a timeout, somebody's abort, a node lost */
#endif
		od;
		atomic { dropped = !ok; gave_up = gave_up || !ok; final = 0; asked = false; ok = false; wanted = 0;
			tell_nodes(RELEASE, 0) };
		atomic { did[0] == RELEASED && did[1] == RELEASED ->
			did[0] = BUSY; did[1] = BUSY; armed_at[0] = 0; armed_at[1] = 0; dropped = false;
			sealed_at[0] = 0; sealed_at[1] = 0; sealed_at[2] = 0 }
	:: else -> over = true; break
	od
}

init {
	atomic {
		run controller();
		run node(0);
		run node(1);
		run rank(0);
#ifndef TWO_RANKS
		run rank(1);
#endif
		run rank(2);
#ifdef BUG_PLAIN_STEP
		run step_drain(0);
		run step_drain(1);
		run step_drain(2);
#endif
#ifdef BUG_PLAIN_STOP
		run stop_drain(0);
		run stop_drain(1);
#endif
	}
}
