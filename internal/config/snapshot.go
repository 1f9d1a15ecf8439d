package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/robfig/cron/v3"
	"github.com/spf13/pflag"
)

// Snapshots configures the snapshots that a server saves of its cluster.
type Snapshots struct {
	Storage SnapshotStorage
	// PassphraseFile holds what the snapshots are encrypted with. Empty: a file in the data directory, which is created.
	PassphraseFile string
	// Schedule is when snapshots are saved, in the syntax of cron. Empty: on request only.
	Schedule string
	// Retention is how many scheduled snapshots are kept.
	Retention int
}

// SnapshotStorage is where snapshots are kept.
type SnapshotStorage struct {
	// Dir is a directory, or s3://BUCKET/PREFIX. Empty: snapshots in the data directory.
	Dir string
	S3  SnapshotS3
}

// SnapshotS3 is the object store of snapshots.
type SnapshotS3 struct {
	// Endpoint is the URL of the object store; empty: Amazon S3 in the region.
	Endpoint, Region string
	// CredentialsFile has the format of Amazon's command line: ~/.aws/credentials.
	CredentialsFile string
	// CAFile verifies the object store; empty: the CAs of the host do.
	CAFile string
}

const (
	groupSnapshots = "Snapshots"
	s3Scheme       = "s3://"
	// defaultRetention is about a day of snapshots that are saved every few hours.
	defaultRetention = 5
)

// bucketName is what the name of a bucket consists of.
var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

func defaultSnapshots() Snapshots {
	return Snapshots{Storage: defaultSnapshotStorage(), Retention: defaultRetention}
}

func defaultSnapshotStorage() SnapshotStorage {
	return SnapshotStorage{S3: SnapshotS3{Region: "us-east-1"}}
}

func (c *Snapshots) flags(groups *FlagGroups) {
	fs := groups.Common(groupSnapshots)
	fs.StringVar(&c.Schedule, "snapshot-schedule", c.Schedule,
		`When to save snapshots of the cluster, in the syntax of cron, such as "0 */6 * * *". Without it they are saved by 'skiff snapshot save' only.`)
	fs.IntVar(&c.Retention, "snapshot-retention", c.Retention, "Number of scheduled snapshots of this server to keep.")
	c.Storage.dirFlag(fs)
	passphraseFlag(fs, &c.PassphraseFile, "Path to a file with the passphrase that encrypts snapshots. Defaults to snapshot-passphrase in --data-dir, which is created.")
	c.Storage.S3.flags(groups.Advanced(groupSnapshots))
}

func (c *SnapshotStorage) dirFlag(fs *pflag.FlagSet) {
	fs.StringVar(&c.Dir, "snapshot-dir", c.Dir, "Directory of the snapshots, or s3://BUCKET/PREFIX. Defaults to snapshots in --data-dir.")
}

func passphraseFlag(fs *pflag.FlagSet, file *string, usage string) {
	fs.StringVar(file, "snapshot-passphrase-file", *file, usage)
}

func (c *SnapshotS3) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Endpoint, "snapshot-s3-endpoint", c.Endpoint, "URL of the object store of an s3:// --snapshot-dir. Defaults to Amazon S3 in --snapshot-s3-region.")
	fs.StringVar(&c.Region, "snapshot-s3-region", c.Region, "Region of the bucket.")
	fs.StringVar(&c.CredentialsFile, "snapshot-s3-credentials-file", c.CredentialsFile,
		"Path to a file with the credentials for the bucket, in the format of ~/.aws/credentials: aws_access_key_id and aws_secret_access_key of the profile default.")
	fs.StringVar(&c.CAFile, "snapshot-s3-ca-file", c.CAFile, "Path to the CA certificates of the object store. Defaults to those of the host.")
}

// validate checks the snapshots of a server. External is set when it has an external etcd.
func (c *Snapshots) validate(external bool) error {
	if external {
		if *c != defaultSnapshots() {
			return errors.New("--snapshot-schedule and the other flags of snapshots: snapshots are of the embedded etcd, not of --etcd-servers")
		}
		return nil
	}
	errs := []error{c.Storage.validate()}
	if _, isS3 := strings.CutPrefix(c.Storage.Dir, s3Scheme); isS3 && c.PassphraseFile == "" {
		errs = append(errs, errors.New("--snapshot-passphrase-file: required with an object store, because its snapshots would be lost with a passphrase that only this host has"))
	}
	if c.Schedule != "" {
		if _, err := cron.ParseStandard(c.Schedule); err != nil {
			errs = append(errs, fmt.Errorf("--snapshot-schedule: %w", err))
		}
	}
	if c.Retention < 1 {
		errs = append(errs, fmt.Errorf("--snapshot-retention: %d is less than 1", c.Retention))
	}
	return errors.Join(errs...)
}

func (c *SnapshotStorage) validate() error {
	bucket, _, isS3 := c.Bucket()
	switch {
	case !isS3 && strings.Contains(c.Dir, "://"):
		return fmt.Errorf("--snapshot-dir: %q is neither a directory nor s3://BUCKET/PREFIX", c.Dir)
	case !isS3 && c.S3 != defaultSnapshotStorage().S3:
		return errors.New("--snapshot-s3-endpoint and the other flags of an object store have no effect without an s3:// --snapshot-dir")
	case !isS3 && c.Dir != "" && !filepath.IsAbs(c.Dir):
		return fmt.Errorf("--snapshot-dir: %q is not an absolute path", c.Dir)
	case !isS3:
		return nil
	case !bucketName.MatchString(bucket):
		return fmt.Errorf("--snapshot-dir: %q is not the name of a bucket", bucket)
	case c.S3.CredentialsFile == "":
		return errors.New("--snapshot-s3-credentials-file: required with an s3:// --snapshot-dir")
	case c.S3.Region == "":
		return errors.New("--snapshot-s3-region: must not be empty")
	}
	if at, err := url.Parse(c.S3.Endpoint); c.S3.Endpoint != "" && (err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http") {
		return fmt.Errorf("--snapshot-s3-endpoint: %q is not a URL such as https://s3.example.com", c.S3.Endpoint)
	}
	return nil
}

// Bucket is the bucket of an s3:// directory, and what its keys begin with: nothing, or a path that ends with a slash.
func (c *SnapshotStorage) Bucket() (bucket, prefix string, isS3 bool) {
	rest, isS3 := strings.CutPrefix(c.Dir, s3Scheme)
	if !isS3 {
		return "", "", false
	}
	bucket, prefix, _ = strings.Cut(rest, "/")
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return bucket, prefix, true
}

// Snapshot is the configuration of `skiff snapshot`.
type Snapshot struct {
	DataDir string
	// Kubeconfig is the administrator's, instead of the one in DataDir.
	Kubeconfig string
	// Name is what the name of a new snapshot begins with.
	Name    string
	Storage SnapshotStorage
	// PassphraseFile holds what a snapshot was encrypted with. Empty: the one in DataDir.
	PassphraseFile string
	// Keep is how many snapshots prune leaves.
	Keep int
	// Replace lets restore set the state in DataDir aside.
	Replace bool
}

// DefaultSnapshot is the configuration of `skiff snapshot` without flags.
func DefaultSnapshot() Snapshot {
	return Snapshot{DataDir: defaultDataDir, Name: "manual", Storage: defaultSnapshotStorage(), Keep: defaultRetention}
}

// Flags binds the configuration that all verbs of `skiff snapshot` share to command-line flags.
func (c *Snapshot) Flags(groups *FlagGroups) {
	groups.Common(groupGeneric).StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the server.")
}

// SaveFlags binds the configuration of `skiff snapshot save` to command-line flags.
func (c *Snapshot) SaveFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Name, "name", c.Name, "What the name of the snapshot begins with. The name of the server and the time follow.")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path to an administrator's kubeconfig, instead of the one in --data-dir.")
}

// StorageFlags binds the configuration of the verbs that use stored snapshots to command-line flags.
func (c *Snapshot) StorageFlags(fs *pflag.FlagSet) {
	c.Storage.dirFlag(fs)
	c.Storage.S3.flags(fs)
}

// PruneFlags binds the configuration of `skiff snapshot prune` to command-line flags.
func (c *Snapshot) PruneFlags(fs *pflag.FlagSet) {
	fs.IntVar(&c.Keep, "keep", c.Keep, "Number of the newest snapshots to keep.")
	c.StorageFlags(fs)
}

// RestoreFlags binds the configuration of `skiff snapshot restore` to command-line flags.
func (c *Snapshot) RestoreFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Replace, "replace", c.Replace, "Replace the state in --data-dir. It is kept there, in the directory replaced.")
	passphraseFlag(fs, &c.PassphraseFile, "Path to the file with the passphrase the snapshot was encrypted with. Defaults to snapshot-passphrase in --data-dir.")
	c.StorageFlags(fs)
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Snapshot) Validate() error {
	errs := []error{c.Storage.validate()}
	if !filepath.IsAbs(c.DataDir) {
		errs = append(errs, fmt.Errorf("--data-dir: %q is not an absolute path", c.DataDir))
	}
	if c.Keep < 1 {
		errs = append(errs, fmt.Errorf("--keep: %d is less than 1", c.Keep))
	}
	return errors.Join(errs...)
}
