package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	etcdlease "go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"skiff/internal/store"
)

// errAlarm: etcd has exceeded its own quota.
var errAlarm = &store.NoSpaceError{Message: "etcd raised alarm NOSPACE: delete objects that are not needed, compact and defragment etcd or raise its quota, " +
	"and disarm the alarm"}

// embeddedError translates errors of the embedded server to those of package store.
func embeddedError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case errors.Is(err, mvcc.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, mvcc.ErrFutureRev):
		return store.ErrFuture
	case errors.Is(err, etcderrors.ErrNoSpace):
		return errAlarm
	case errors.Is(err, etcdlease.ErrLeaseNotFound):
		return errNoLease
	case errors.Is(err, etcderrors.ErrRequestTooLarge):
		return fmt.Errorf("%w: %w", store.ErrTooLarge, err)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// remoteError translates errors of a remote server to those of package store.
func remoteError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	err = clientv3.ContextError(ctx, err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case errors.Is(err, rpctypes.ErrCompacted):
		return store.ErrCompacted
	case errors.Is(err, rpctypes.ErrFutureRev):
		return store.ErrFuture
	case errors.Is(err, rpctypes.ErrNoSpace):
		return errAlarm
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return errNoLease
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return fmt.Errorf("%w: %w", store.ErrTooLarge, err)
	case status.Code(err) == codes.ResourceExhausted && !errors.Is(err, rpctypes.ErrTooManyRequests):
		return fmt.Errorf("%w: %w", store.ErrTooLarge, err)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}
