package taskqueue

import "fmt"

// upgrades has for each format but the newest what makes a state of it one of the next. A
// format that was ever written stays readable: testdata/golden has a state of each.
//
//	1  the first
//	2  Restores, and incarnations that begin with it: a master that does not know it would
//	   give a trainer of a restored job an incarnation that another one had
//	3  names and passes of datasets
//	4  Rates: a master that does not know them would return to the learning rate at the start
//	5  Online: a master that does not know it would end the first pass of a dataset that grows
var upgrades = map[int]func(*Snapshot) error{
	1: neverRestored,
	2: nameSets,
	3: withoutRates,
	4: withoutOnline,
}

// Upgrade brings a decoded state to the newest format, and returns the format that it was written in. The state itself has all
// it needs: roster, parts and ledger are the same in all formats. ErrNewer and ErrDamaged leave the state unchanged.
func (s *Snapshot) Upgrade() (from int, err error) {
	from = s.Format
	switch {
	case from > Format:
		return from, fmt.Errorf("%w: this master reads up to format %d, found format %d: start a newer master; nothing was changed", ErrNewer, Format, from)
	case from < 1:
		return from, fmt.Errorf("%w: format %d: expected 1 to %d", ErrDamaged, from, Format)
	}
	next := *s
	//guard:snapshot-upgraded
	for next.Format < Format {
		if err := upgrades[next.Format](&next); err != nil {
			return from, fmt.Errorf("upgrade the state from format %d: %w", next.Format, err)
		}
		next.Format++
	}
	*s = next
	return from, nil
}

// neverRestored checks that the commit numbers of format 1 fit where format 2 has them.
func neverRestored(s *Snapshot) error {
	//guard:upgrade-checks-state
	if s.Restores != 0 || s.Commit > maxCommit {
		return fmt.Errorf("%w: restored %d times, commit %d", ErrDamaged, s.Restores, s.Commit)
	}
	return nil
}

// nameSets gives the dataset of format 2, which has at most one, its name.
func nameSets(s *Snapshot) error {
	if len(s.Sets) > 1 {
		return fmt.Errorf("%w: %d datasets", ErrDamaged, len(s.Sets))
	}
	sets := make([]SetSnapshot, len(s.Sets))
	for i, set := range s.Sets {
		set.Name = set.Kind.String()
		sets[i] = set
	}
	s.Sets = sets
	return nil
}

// withoutRates checks that a state of format 3 has no field of format 4.
func withoutRates(s *Snapshot) error {
	if len(s.Rates) > 0 || s.RateNumber != 0 {
		return fmt.Errorf("%w: %d learning rates", ErrDamaged, len(s.Rates))
	}
	return nil
}

// withoutOnline checks that no dataset of format 4 can grow.
func withoutOnline(s *Snapshot) error {
	for i, set := range s.Sets {
		if set.Online || !set.Closed {
			return fmt.Errorf("%w: dataset %d is not closed", ErrDamaged, i)
		}
	}
	return nil
}
