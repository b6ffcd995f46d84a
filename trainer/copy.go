package trainer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"trainmaster/internal/grpcdial"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

var (
	// ErrNoModel is returned by Config.Model of a trainer that has no model yet. The caller repeats the call later.
	ErrNoModel = errors.New("the trainer has no model yet")
	// ErrIncompleteModel is returned by CopyModel for a model that did not arrive as it was sent.
	ErrIncompleteModel = errors.New("the model is not complete")
	// ErrOtherTrainer is returned for a model of another trainer, which has the address now.
	ErrOtherTrainer = errors.New("another trainer has the address")
)

// CopyModel writes the current model of the trainer that serves TrainerControl at an address, and returns the version of the model. After an
// error, what was written is not a model: the trainer may have ended during the copy.
func CopyModel(ctx context.Context, address string, to io.Writer) (version int64, err error) {
	return copyModelOf(ctx, address, 0, to)
}

// copyModelOf is CopyModel of the trainer with an ordinal; 0: of any trainer.
func copyModelOf(ctx context.Context, address string, ordinal taskqueue.Ordinal, to io.Writer) (version int64, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream of a copy that is given up
	defer cancel()
	conn, err := grpcdial.Open(address)
	if err != nil {
		return 0, fmt.Errorf("copy the model of the trainer at %s: %w", address, err)
	}
	defer conn.Close()
	version, err = copyModel(ctx, pb.NewTrainerControlClient(conn), ordinal, to)
	if err != nil {
		return 0, fmt.Errorf("copy the model of the trainer at %s: %w", address, err)
	}
	return version, nil
}

func copyModel(ctx context.Context, trainer pb.TrainerControlClient, ordinal taskqueue.Ordinal, to io.Writer) (version int64, err error) {
	stream, err := trainer.GetModel(ctx, &pb.GetModelRequest{})
	if err != nil {
		return 0, err
	}
	digest := sha256.New()
	var last *pb.Model
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrIncompleteModel, err)
		}
		digest.Write(part.GetContent())
		if _, err := to.Write(part.GetContent()); err != nil {
			return 0, err
		}
		last = part
	}
	//guard:model-digest-required
	if !bytes.Equal(last.GetDigest(), digest.Sum(nil)) {
		return 0, fmt.Errorf("%w: expected the SHA-256 of its content in the last message, found %x", ErrIncompleteModel, last.GetDigest())
	}
	//guard:model-of-the-named-trainer
	if found := taskqueue.Ordinal(last.GetTrainerId()); ordinal != 0 && found != ordinal {
		return 0, fmt.Errorf("%w: expected the trainer with the number %d, found the number %d: it was started again", ErrOtherTrainer, ordinal, found)
	}
	return last.GetModelId(), nil
}
