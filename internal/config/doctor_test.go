package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestDoctorFlags(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"", ""},
		{"--data-dir=/d --kubeconfig=k -o json --timeout=1m", ""},
		{"--data-dir=d", `--data-dir: "d" is not an absolute path`},
		{"-o yaml", `--output: "yaml" is not table or json`},
		{"--timeout=0s", "--timeout: 0s is not positive"},
	} {
		c := DefaultDoctor()
		var groups FlagGroups
		c.Flags(&groups)
		fs := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
		groups.AddTo(fs)
		if err := fs.Parse(strings.Fields(test.args)); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); test.want == "" && err != nil || test.want != "" && (err == nil || err.Error() != test.want) {
			t.Errorf("%q: error %v, want %q", test.args, err, test.want)
		}
	}
}
