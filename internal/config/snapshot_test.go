package config

import (
	"strings"
	"testing"
)

func TestSnapshotFlags(t *testing.T) {
	s3 := []string{"--snapshot-dir=s3://bucket/a/b", "--snapshot-s3-credentials-file=/c", "--snapshot-passphrase-file=/p"}
	for _, test := range []struct {
		flags []string
		want  string // in the error; empty: valid
	}{
		{},
		{flags: []string{"--snapshot-schedule=0 */6 * * *", "--snapshot-retention=1", "--snapshot-dir=/backup"}},
		{flags: []string{"--snapshot-schedule=@daily"}},
		{flags: s3},
		{flags: append([]string{"--snapshot-s3-endpoint=https://minio:9000", "--snapshot-s3-region=eu", "--snapshot-s3-ca-file=/ca"}, s3...)},
		{flags: []string{"--snapshot-schedule=every day"}, want: "--snapshot-schedule"},
		{flags: []string{"--snapshot-retention=0"}, want: "--snapshot-retention"},
		{flags: []string{"--snapshot-dir=backup"}, want: "--snapshot-dir: \"backup\" is not an absolute path"},
		{flags: []string{"--snapshot-dir=gs://bucket"}, want: "neither a directory nor s3://"},
		{flags: append([]string{}, s3[0], s3[2]), want: "--snapshot-s3-credentials-file: required"},
		{flags: s3[:2], want: "--snapshot-passphrase-file: required with an object store"},
		{flags: append([]string{"--snapshot-dir=s3:///a"}, s3[1:]...), want: "is not the name of a bucket"},
		{flags: append([]string{"--snapshot-dir=s3://a?b/c"}, s3[1:]...), want: "is not the name of a bucket"},
		{flags: append([]string{"--snapshot-s3-region="}, s3...), want: "--snapshot-s3-region"},
		{flags: append([]string{"--snapshot-s3-endpoint=minio"}, s3...), want: "--snapshot-s3-endpoint"},
		{flags: []string{"--snapshot-s3-endpoint=https://minio"}, want: "have no effect without"},
		{flags: []string{"--etcd-servers=https://e", "--snapshot-schedule=@daily"}, want: "not of --etcd-servers"},
		{flags: []string{"--etcd-servers=https://e"}},
	} {
		c := DefaultAPIServer()
		t.Run(strings.Join(test.flags, " "), func(t *testing.T) { checkError(t, parse(&c, test.flags...), test.want) })
	}
}

func TestSnapshotBucket(t *testing.T) {
	for dir, want := range map[string][2]string{
		"s3://bucket": {"bucket", ""}, "s3://bucket/": {"bucket", ""}, "s3://bucket/a": {"bucket", "a/"}, "s3://bucket/a/b/": {"bucket", "a/b/"},
	} {
		c := SnapshotStorage{Dir: dir}
		if bucket, prefix, isS3 := c.Bucket(); !isS3 || bucket != want[0] || prefix != want[1] {
			t.Errorf("%s: %q, %q, %v", dir, bucket, prefix, isS3)
		}
	}
	for _, dir := range []string{"", "/backup", "s3"} {
		c := SnapshotStorage{Dir: dir}
		if _, _, isS3 := c.Bucket(); isS3 {
			t.Errorf("%q is a bucket", dir)
		}
	}
}
