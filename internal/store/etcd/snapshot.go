package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// ErrNotEmbedded means that a store is an external etcd, whose database is not skiff's to copy.
var ErrNotEmbedded = errors.New("the store is an external etcd: make its snapshots with etcdctl")

// DatabaseBytes is the size of the embedded etcd's database; 0 for an external one.
func (s *Store) DatabaseBytes() int64 {
	if e, ok := s.engine.(*embedded); ok {
		return e.server.Backend().Size()
	}
	return 0
}

// WriteDatabase writes a consistent copy of the embedded etcd's database: the state at one revision, with everything that was acknowledged before
// the call. Writes go on meanwhile; the space they free is reused only afterwards.
func (s *Store) WriteDatabase(ctx context.Context, to io.Writer) error {
	e, ok := s.engine.(*embedded)
	if !ok {
		return ErrNotEmbedded
	}
	// A member of a cluster may not have applied everything that was acknowledged.
	if err := e.server.LinearizableReadNotify(ctx); err != nil {
		return embeddedError(ctx, err)
	}
	// A defragmentation would block the server until the copy is complete.
	e.defragmenting.Lock()
	defer e.defragmenting.Unlock()
	snapshot := e.server.Backend().Snapshot()
	written, err := snapshot.WriteTo(contextWriter{ctx, to})
	size := snapshot.Size()
	if err = errors.Join(err, snapshot.Close()); err != nil {
		return fmt.Errorf("copy etcd's database: %w", err)
	}
	if written != size {
		return fmt.Errorf("copy etcd's database: %d of %d bytes were written", written, size)
	}
	return nil
}

// contextWriter fails when its context is done.
type contextWriter struct {
	ctx context.Context
	to  io.Writer
}

// Write implements io.Writer.
func (w contextWriter) Write(data []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.to.Write(data)
}

// Inspection is what is in a copy of a database.
type Inspection struct {
	// Revision is the newest one, Records the number of stored versions of keys.
	Revision, Records int64
	Bytes             int64
	// Hash is the checksum of all buckets that etcdutl computes.
	Hash uint32
}

// Inspect reads all of a copy of a database and checks its structure. The file must be one that was written completely: a truncated one would end
// the process.
func Inspect(path string) (inspection Inspection, err error) {
	database, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true})
	if err != nil {
		return inspection, fmt.Errorf("open database: %w", err)
	}
	defer func() { err = errors.Join(err, database.Close()) }()
	info, err := os.Stat(path)
	if err != nil {
		return inspection, err
	}
	inspection.Bytes = info.Size()
	err = database.View(func(tx *bbolt.Tx) error {
		if err := checkStructure(tx); err != nil {
			return err
		}
		if tx.Bucket(schema.Key.Name()) == nil {
			return errors.New("it is not a database of etcd: it has no bucket for keys")
		}
		sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
		err := tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
			sum.Write(name)
			holdsKeys := bytes.Equal(name, schema.Key.Name())
			return bucket.ForEach(func(key, value []byte) error {
				sum.Write(key)
				sum.Write(value)
				if holdsKeys {
					inspection.Records++
					inspection.Revision = max(inspection.Revision, mvcc.BytesToRev(key).Main)
				}
				return nil
			})
		})
		inspection.Hash = sum.Sum32()
		return err
	})
	return inspection, err
}

// checkStructure checks that every page of a database is used once or free.
func checkStructure(tx *bbolt.Tx) error {
	var first error
	errs := 0
	for err := range tx.Check() {
		if errs++; first == nil {
			first = err
		}
	}
	if first != nil {
		return fmt.Errorf("the database is damaged: %d errors, the first is: %w", errs, first)
	}
	return nil
}
