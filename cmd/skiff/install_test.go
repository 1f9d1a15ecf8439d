package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"skiff/internal/config"
)

// The service runs with the flags of its installation.
func TestServiceArguments(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cmd := installServerCommand()
	if err := cmd.ParseFlags(strings.Fields("--no-start --data-dir /d --kubelet-config=k.yaml --snapshot-dir s3://bucket/prefix --merge-kubeconfig ~/.kube/config --without proxy,scheduler --service-account-issuer a --service-account-issuer b,c --tls-cipher-suites X,Y --audit-log-path - --no-node=false --tls-curve-preferences=1,2 --requestheader-group-headers= " +
		"--tls-sni-cert-key a.crt,/a.key --tls-sni-cert-key /b.crt,/b.key:b.example.com,*.b.example.com --oidc-required-claim a=1 --oidc-required-claim b=2,c --oidc-signing-algs ES256,RS256")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"--audit-log-path=-", "--data-dir=/d", "--kubelet-config=" + filepath.Join(dir, "k.yaml"), "--merge-kubeconfig=~/.kube/config", "--no-node=false", "--requestheader-group-headers=",
		"--service-account-issuer=a", "--service-account-issuer=b,c", "--snapshot-dir=s3://bucket/prefix", "--tls-cipher-suites=X", "--tls-cipher-suites=Y", "--tls-curve-preferences=1",
		"--tls-curve-preferences=2", "--without=proxy,scheduler",
		"--tls-sni-cert-key=" + filepath.Join(dir, "a.crt") + ",/a.key", "--tls-sni-cert-key=/b.crt,/b.key:b.example.com,*.b.example.com",
		"--oidc-required-claim=a=1", "--oidc-required-claim=b=2,c", "--oidc-signing-algs=ES256", "--oidc-signing-algs=RS256",
	}
	got := serviceArguments(cmd.Flags(), &config.Install{})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
	again := serverCommand()
	if err := again.ParseFlags(got); err != nil {
		t.Fatal(err)
	}
	again.Flags().VisitAll(func(f *pflag.Flag) {
		installed := cmd.Flags().Lookup(f.Name)
		if f.Name != "kubelet-config" && f.Name != "tls-sni-cert-key" && f.Value.String() != installed.Value.String() {
			t.Errorf("--%s is %s in the service, %s was given", f.Name, f.Value, installed.Value)
		}
	})
}

// What the environment sets at installation is kept in the arguments, because the service has another environment. A configuration file is read by the
// service itself.
func TestServiceArgumentsOfSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("node-name: one\nlog-level: debug\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.InstallAgent{Agent: config.DefaultAgent()}
	var groups config.FlagGroups
	c.Flags(&groups)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	groups.AddTo(fs)
	if err := fs.Parse([]string{"--config=" + file, "--server=https://a:6443", "--server=https://b:6443"}); err != nil {
		t.Fatal(err)
	}
	if _, err := groups.ReadSettings(fs, []string{"SKIFF_NODE_IP=10.0.0.1"}); err != nil || c.Name != "one" {
		t.Fatalf("name %q, %v", c.Name, err)
	}
	want := []string{"--config=" + file, "--node-ip=10.0.0.1", "--server=https://a:6443", "--server=https://b:6443"}
	if got := serviceArguments(fs, &c.Install); !slices.Equal(got, want) {
		t.Errorf("arguments %q, want %q", got, want)
	}
}

// Flags with the name of a file or directory are recognized by their help.
func TestPathFlags(t *testing.T) {
	path := regexp.MustCompile(`(file|-dir|kubeconfig|-config|-path)$`)
	for _, cmd := range []*pflag.FlagSet{installServerCommand().Flags(), installAgentCommand().Flags()} {
		cmd.VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "bool" && path.MatchString(f.Name) && f.Name != "runtime-config" && !isPath(f) {
				t.Errorf("--%s is not recognized as a path: %s", f.Name, f.Usage)
			}
		})
	}
}
