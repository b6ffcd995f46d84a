// Package ring implements the collective operations of a synchronous training without parameter servers: sums of vectors, copies, and
// small messages between the members of one generation, over TCP.
//
//	endpoint, err := ring.Listen("127.0.0.1:0", job, ring.Config{})
//	group, err := endpoint.Form(ctx, ring.Membership{Generation: 4, Rank: 1, Members: members}) // connections to all members
//	messages, err := group.Gather(ctx, message)                                               // of all members, in rank order
//	err = group.AllReduce(ctx, gradients)                                                     // the sum of all members, in place
//	err = group.Broadcast(ctx, 0, behind, content)                                            // from one member to others
//
// # Guarantees
//
// Each element of the result of AllReduce is ((r0 + r1) + r2) + ... of the elements of ranks 0, 1, 2, ... in float32. So all members have the
// same bits, and a repetition with the same inputs has them, too. (Only the bits of a NaN can differ.)
//
// A generation has one [Membership]. A member connects to each other member once. A connection of another job, of an older generation, or
// with another list of members is refused. A collective ends with the same error for all later calls: a group is used until its first error.
//
// # Algorithm
//
// Rank r owns the r-th part of the vector. Every member sends its parts to the owners. The owner adds them in rank order, and sends the
// sum to all members. A member sends and receives 2(n-1)/n of the vector, which is the least possible. Both phases run at the same
// time, in blocks of 256 KiB: the sum of a block is sent while the next block arrives.
//
//	bytes   field       meaning
//	0       kind        1 ping, 2 contribution, 3 sum, 4 message, 5 copy, 6 abort
//	1-3     0
//	4-7     operation   number of the collective in the group
//	8-11    block       index of the block; abort: rank of the failed member
//	12-15   length      bytes of payload, at most 262,144
//	16-19   0
//	20-23   crc         CRC-32C of bytes 0-19, then of the payload
//
// All numbers are little-endian. The CRC is the one of the data port of the parameter servers. The checksum of TCP has 16 bits, and a wrong
// block would change the model of one member only, without an error.
//
// Memory: a member has two blocks for each other member, apart from the vector.
//
// # Failure
//
// A connection without a byte for [Config.Silence] is lost: members send a ping five times in this period. The error is a *[PeerError] that names the
// member. A member that finds a failure sends the name of the failed member to the others, and then closes its connections. Bytes that are
// no handshake end their connection only. Memory is allocated after the length was checked.
package ring
