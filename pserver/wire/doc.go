// Package wire implements the frames of the parameter servers' data port. It has no sockets, parameters or optimizer rules.
//
// A frame is a header of 64 bytes and a payload of at most 1 MiB, everything
// little-endian. A request and its reply have the same shape.
//
//	 0       4       8               16              24      28      32
//	+-------+-+-+-+-+---------------+---------------+-------+-------+
//	| magic |v|o|d|f| block         | incarnation   | place | arg   |
//	+-------+-+-+-+-+---------------+-------+---+---+-------+-------+
//	| step          | sequence      | pver  | se| je| length| crc   |
//	+---------------+---------------+-------+---+---+-------+-------+
//	32              40              48      52  54  56      60      64
//
//	bytes  field        meaning
//	0-3    magic        "TMPS" (54 4d 50 53): distinguishes the data port from gRPC on the same port
//	4      version      1
//	5      op           operation, see below; a reply repeats it
//	6      dtype        element type of the payload, see below
//	7      flags        see below
//	8-15   block        number of the block in the placement table
//	16-23  incarnation  of the trainer: unique and growing over all trainers of a job
//	24-27  placement    epoch of the placement table that the sender used
//	28-31  argument     by op, see below
//	32-39  step         push: the trainer's step; stage: the version that the gradient was computed at; hello: the first 8
//	                    bytes of the id of the job, big-endian, 0: not stated
//	40-47  sequence     grows with every frame of a trainer; a reply repeats it
//	48-51  version      pull: the least parameter version wanted; reply: the version sent or reached; push:
//	                    version of the block when the gradient was computed, plus the trainer's own pushes since
//	52-53  shard epoch  grows with every start of the shard; 0 in a hello
//	54-55  job epoch    grows with every rollback of the job
//	56-59  length       bytes of payload, at most 1,048,576
//	60-63  crc          CRC-32C (Castagnoli) of header bytes 0-59, then of the payload
//
//	op  name       request                             reply
//	1   hello      block: the trainer's ordinal;       block: shard index; version; epochs; argument: slots of
//	               argument: shard index expected;     shared memory that are offered or attached
//	               payload: digest of the        payload: an [Offer], or nothing
//	               placement, then nothing, or
//	               the [Identity] of the server
//	2   pull       block, version                      payload: parameters
//	3   push       block, step, payload: gradient;     version
//	               argument: learning-rate scale
//	4   push-pull  as push                             payload: parameters after the push
//	5   stage      block, step, payload: sum of        nothing
//	               gradients; argument: records
//	6   put        block, payload: first parameters    nothing
//	7   lookup-    block: number of the table;         payload: rows, [ids, dim] in float32, in the order
//	    rows       version; payload: rows without      of the ids; version
//	               values
//	8   push-rows  block: table; step; payload: rows   flag duplicate if any slot had the step
//	               with gradients; argument as push
//	9   stage-rows block: table; step; payload: rows   nothing
//	               with sums of gradients; argument:
//	               records
//	10  scan-rows  block: table; argument: slot;       payload: rows from there on, of this and later
//	               step: first row                     slots, with values; argument and step: next
//	                                                   position, slot 1,024 at the end; version
//
//	dtype  name                 flag  name       meaning
//	0      bytes (or nothing)   1     reply      set in every reply
//	1      float32              2     error      argument: code; payload: message
//	2      bfloat16             4     duplicate  the push was applied before
//	3      rows                 8     shared     the payload is in shared memory, not after the header; in a
//	                                             hello: memory is requested, or attached
//
// Rows are a batch of rows of a table, see below. Package sharedmem implements shared memory for trainers on the server's machine. A
// payload starts at the start of its slot, except a request in bfloat16, which starts after as many unused bytes as it has.
//
// The dtype of a pull selects the dtype of the reply; bytes mean float32. The reply to a push-pull has the dtype of the gradient. A
// put is float32.
//
// Tables of embeddings are numbered from 0 in the order of their names. A batch of rows lists slots in ascending order, each once,
// with all ids of a slot in sequence ([Rows]):
//
//	0         4        8        12        16             16+8s      16+8s+8n         16+8s+8n+4nd
//	+---------+--------+--------+---------+--------------+----------+----------------+
//	| slots s | rows n | part   | parts   | s x          | n ids    | n x d float32, |
//	| u32     | u32    | u32    | u32     | (slot, rows) | i64      | not in lookups |
//	+---------+--------+--------+---------+--------------+----------+----------------+
//
// Staged rows of a table in one step come in parts, numbered from 0. A lookup and a push are part 0 of 1. All rows of a slot in one
// step are in one frame.
//
// The scale of a push is the bits of a float32; zero bits mean 1. Codes of error replies are the constants of type [Code], with the
// action of the client. Unknown versions, ops, dtypes and flags are refused, so that a later meaning is never mistaken for an
// earlier one.
//
// A sender that has the payload before the header sums it separately and joins the sums, see [Checksum.Then].
//
// Guarantees: a length is bounded before memory is allocated for it. A payload is read whole and checked before any of it is applied.
// Encoding and decoding allocate nothing. Failure: after a damaged header or a wrong checksum the position in the stream is
// unknown, and the receiver closes the connection (see [Code.Fatal]).
//
// Payloads are the memory of []float32. The package therefore builds on little-endian machines only.
package wire
