package etcd

import "context"

// TransferLeadership makes another member the leader, as a leader does when it is closed.
func (s *Store) TransferLeadership(ctx context.Context) error {
	e, err := s.member()
	if err != nil {
		return err
	}
	return e.transferLeadership(ctx)
}
