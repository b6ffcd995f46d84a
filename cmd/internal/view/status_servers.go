package view

import (
	"fmt"
	"strconv"
	"strings"

	pb "trainmaster/proto/trainmaster/v1"
)

// Servers describes the parameter servers of a job.
type Servers struct {
	Wanted         uint32   `json:"wanted"`
	Present        uint32   `json:"present"`
	Missing        []uint32 `json:"missing"`
	MovingTo       uint32   `json:"moving_to"`       // 0: blocks do not move
	PlacementEpoch uint32   `json:"placement_epoch"` // 0: blocks were never moved
	Waiting        string   `json:"waiting"`
	Unknown        string   `json:"unknown"` // why the registered servers are unknown
	Overflow       string   `json:"overflow"`
	Unrestored     string   `json:"unrestored"` // why servers wait without parameters
}

func newServersStatus(p *pb.ParameterServers) *Servers {
	if p == nil {
		return nil
	}
	return &Servers{
		Wanted: p.GetWanted(), Present: p.GetPresent(), Missing: append([]uint32{}, p.GetMissing()...), MovingTo: p.GetMovingTo(),
		PlacementEpoch: p.GetPlacementEpoch(), Waiting: p.GetWaiting(), Unknown: p.GetUnknown(), Overflow: p.GetOverflow(), Unrestored: p.GetUnrestored(),
	}
}

func (s *Servers) String() string {
	text := s.presence()
	if s.Overflow != "" {
		text += "; parameters overflowed, no checkpoints are written: " + oneLine(s.Overflow)
	}
	if s.Unrestored != "" {
		text += "; waiting without parameters: " + oneLine(s.Unrestored)
	}
	return text
}

func (s *Servers) presence() string {
	text := fmt.Sprint(s.Wanted)
	if len(s.Missing) > 0 {
		text = fmt.Sprintf("%d of %d", s.Present, max(s.Wanted, s.MovingTo))
	}
	switch s.MovingTo {
	case 0:
	case s.Wanted:
		text += fmt.Sprintf(", blocks are moving (placement %d)", s.PlacementEpoch)
	default:
		text += fmt.Sprintf(", moving to %d (placement %d)", s.MovingTo, s.PlacementEpoch)
	}
	var indices []string
	for _, index := range s.Missing {
		indices = append(indices, strconv.Itoa(int(index)))
	}
	switch {
	case s.Unknown != "":
		return text + "; registered servers unknown: " + oneLine(s.Unknown)
	case len(indices) == 1:
		return text + fmt.Sprintf(", index %s is missing: start one with: master pserver --endpoints ...", indices[0])
	case len(indices) > 1:
		return text + fmt.Sprintf(", indices %s are missing: start each with: master pserver --endpoints ...", strings.Join(indices, ", "))
	case s.Waiting != "":
		return text + "; waiting: " + oneLine(s.Waiting)
	}
	return text
}

// oneLine joins the lines of an error of several servers.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }
