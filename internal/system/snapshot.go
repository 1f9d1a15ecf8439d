package system

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/robfig/cron/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"skiff/internal/atomicfile"
	"skiff/internal/backup"
	"skiff/internal/config"
	"skiff/internal/pki"
	"skiff/internal/store/etcd"
	"skiff/internal/version"
)

// What snapshots have in the data directory.
const (
	snapshotDir        = "snapshots"
	snapshotStagingDir = "snapshot.tmp"
	snapshotPassphrase = "snapshot-passphrase"
)

// maxPassphraseBytes is the size of the largest passphrase.
const maxPassphraseBytes = 4096

// newSaver makes what saves snapshots of the embedded etcd.
func (s *server) newSaver(store *etcd.Store) (*backup.Saver, error) {
	c := s.config.APIServer
	storage, err := snapshotStorage(c.DataDir, c.Snapshots.Storage)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	options := backup.SaverOptions{
		Source: &snapshotSource{Store: store, config: c}, Storage: storage, StagingDir: filepath.Join(c.DataDir, snapshotStagingDir),
		Retention: c.Snapshots.Retention, Server: host, Version: version.String(), Log: s.log.With("component", "snapshots"),
	}
	if c.Snapshots.Schedule != "" {
		if options.Schedule, err = cron.ParseStandard(c.Snapshots.Schedule); err != nil {
			return nil, fmt.Errorf("--snapshot-schedule: %w", err)
		}
	}
	saver := backup.NewSaver(options)
	s.registry.MustRegister(saver.Collectors()...)
	return saver, nil
}

// snapshotStorage is where snapshots are kept.
func snapshotStorage(dataDir string, c config.SnapshotStorage) (backup.Storage, error) {
	bucket, prefix, isS3 := c.Bucket()
	if !isS3 {
		return backup.Directory(cmp.Or(c.Dir, filepath.Join(dataDir, snapshotDir))), nil
	}
	credentials := func() (backup.Credentials, error) { return backup.ReadCredentials(c.S3.CredentialsFile) }
	if _, err := credentials(); err != nil {
		return nil, fmt.Errorf("--snapshot-s3-credentials-file: %w", err)
	}
	options := backup.S3Options{
		Endpoint: cmp.Or(c.S3.Endpoint, "https://s3."+c.S3.Region+".amazonaws.com"), Region: c.S3.Region, Bucket: bucket, Prefix: prefix, Credentials: credentials,
	}
	if c.S3.CAFile != "" {
		var err error
		if options.CA, err = os.ReadFile(c.S3.CAFile); err != nil {
			return nil, fmt.Errorf("--snapshot-s3-ca-file: %w", err)
		}
	}
	storage, err := backup.NewS3(options)
	if err != nil {
		return nil, fmt.Errorf("--snapshot-s3-endpoint: %w", err)
	}
	return storage, nil
}

// snapshotSource is what the snapshots of a server contain.
type snapshotSource struct {
	*etcd.Store
	config config.APIServer
}

var _ backup.Source = (*snapshotSource)(nil)

// Size implements backup.Source.
func (s *snapshotSource) Size() int64 { return s.DatabaseBytes() }

// Inspect implements backup.Source.
func (s *snapshotSource) Inspect(path string) (backup.Database, error) { return inspectDatabase(path) }

func inspectDatabase(path string) (backup.Database, error) {
	found, err := etcd.Inspect(path)
	return backup.Database{Revision: found.Revision, Records: found.Records, Bytes: found.Bytes, Hash: found.Hash}, err
}

// Files implements backup.Source.
func (s *snapshotSource) Files() ([]backup.File, error) {
	keys, err := pki.Dir(filepath.Join(s.config.DataDir, "pki")).Export()
	if err != nil {
		return nil, err
	}
	var files []backup.File
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		files = append(files, backup.File{Name: backup.KeysDir + "/" + name, Data: keys[name]})
	}
	accounts := s.config.Authentication.ServiceAccounts
	configured := map[string]string{
		"encryption-provider-config": s.config.Encryption.File, "service-account-signing-key-file": accounts.SigningKeyFile,
	}
	for i, path := range accounts.KeyFiles {
		configured["service-account-key-file-"+strconv.Itoa(i+1)] = path
	}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		path := configured[name]
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, backup.File{Name: backup.FilesDir + "/" + name, Data: data, Origin: path})
	}
	return files, nil
}

// Passphrase implements backup.Source. Unless a file is configured, the passphrase is created with the first snapshot.
func (s *snapshotSource) Passphrase() ([]byte, error) {
	if s.config.Snapshots.PassphraseFile != "" {
		return readPassphrase(s.config.Snapshots.PassphraseFile)
	}
	path := filepath.Join(s.config.DataDir, snapshotPassphrase)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		if err := atomicfile.Write(path, []byte(rand.Text()+rand.Text()+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	return readPassphrase(path)
}

// readPassphrase reads the passphrase of snapshots: the first line of a file.
func readPassphrase(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--snapshot-passphrase-file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxPassphraseBytes+1))
	if err != nil {
		return nil, fmt.Errorf("--snapshot-passphrase-file: %w", err)
	}
	passphrase, rest, _ := bytes.Cut(data, []byte("\n"))
	passphrase = bytes.TrimSuffix(passphrase, []byte("\r"))
	if len(passphrase) < backup.MinPassphraseBytes || len(data) > maxPassphraseBytes || len(rest) > 0 {
		return nil, fmt.Errorf("--snapshot-passphrase-file: %s must have one line with at least %d bytes", path, backup.MinPassphraseBytes)
	}
	return passphrase, nil
}

// SaveSnapshot has a running server save a snapshot.
func SaveSnapshot(ctx context.Context, c config.Snapshot, out io.Writer) error {
	if err := backup.ValidatePrefix(c.Name); err != nil {
		return fmt.Errorf("--name: %w", err)
	}
	connection, err := adminConnection(c.DataDir, c.Kubeconfig)
	if err != nil {
		return err
	}
	remote, err := statusClient(connection)
	if err != nil {
		return err
	}
	saved, err := backup.Request(ctx, remote, c.Name)
	if apierrors.IsNotFound(err) && saved.Name == "" {
		return fmt.Errorf("the server at %s saves no snapshots: it has an external etcd, or is not skiff", connection.Host)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "saved %s in %s: revision %d, %d records, %d bytes\n", saved.Name, saved.Location, saved.Database.Revision, saved.Database.Records, saved.Bytes)
	return err
}

// statusClient is a client of paths that are not resources. It decodes the Status of errors.
func statusClient(connection *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	connection.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	connection.ContentType, connection.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.UnversionedRESTClientFor(connection)
}

// ListSnapshots writes the stored snapshots.
func ListSnapshots(ctx context.Context, c config.Snapshot, out io.Writer) error {
	storage, err := snapshotStorage(c.DataDir, c.Storage)
	if err != nil {
		return err
	}
	entries, err := storage.List(ctx)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NAME\tCREATED\tBYTES")
	for _, e := range entries {
		fmt.Fprintf(w, "%s\t%s\t%d\n", e.Name, e.Created.Format(time.RFC3339), e.Bytes)
	}
	return w.Flush()
}

// PruneSnapshots deletes all but the newest snapshots.
func PruneSnapshots(ctx context.Context, c config.Snapshot, out io.Writer) error {
	storage, err := snapshotStorage(c.DataDir, c.Storage)
	if err != nil {
		return err
	}
	deleted, err := backup.Prune(ctx, storage, backup.Pruning{Keep: c.Keep})
	for _, name := range deleted {
		fmt.Fprintln(out, "deleted", name)
	}
	return err
}
