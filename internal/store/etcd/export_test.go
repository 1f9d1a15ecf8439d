package etcd

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TransferLeadership makes another member the leader, as a leader does when it is closed.
func (s *Store) TransferLeadership(ctx context.Context) error {
	e, err := s.member()
	if err != nil {
		return err
	}
	return e.transferLeadership(ctx)
}

// BeginDefragmentation begins a defragmentation of a member, or returns why it does not. The function that it returns ends it.
func (s *Store) BeginDefragmentation(ctx context.Context, isUrgent bool) (end func(), err error) {
	e, err := s.member()
	if err != nil {
		return nil, err
	}
	if reason := e.beginDefragmentation(ctx, isUrgent); reason != "" {
		return nil, errors.New(reason)
	}
	return func() { e.isDefragmenting.Store(false) }, nil
}

// RevokeLeases makes an embedded etcd lose its leases, and returns how many there were.
func (s *Store) RevokeLeases(ctx context.Context) (int, error) {
	server := s.engine.(*embedded).server
	leases, err := server.LeaseLeases(ctx, &pb.LeaseLeasesRequest{})
	if err != nil {
		return 0, err
	}
	for _, l := range leases.Leases {
		if _, err := server.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: l.ID}); err != nil {
			return 0, err
		}
	}
	return len(leases.Leases), nil
}
