package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// configurable is the configuration of any command.
type configurable interface {
	Flags(*FlagGroups)
	Validate() error
}

// parse reads a command line into a configuration and validates it.
func parse(c configurable, args ...string) error {
	var groups FlagGroups
	c.Flags(&groups)
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	groups.AddTo(fs)
	if err := fs.Parse(args); err != nil {
		return err
	}
	return c.Validate()
}

// checkError fails the test unless err contains want; an empty want means no error.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that contains %q", err, want)
	}
}

func TestFlagGroups(t *testing.T) {
	var groups FlagGroups
	var a, b string
	groups.Common("Empty")
	groups.Common("First").StringVar(&a, "a", "", "")
	groups.Advanced("First").StringVar(&b, "b", "", "")
	all := groups.All()
	if len(all) != 1 || all[0].Name != "First" {
		t.Fatalf("groups %v, want First alone", all)
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	groups.AddTo(fs)
	if err := fs.Parse([]string{"--a=1", "--b=2"}); err != nil || a != "1" || b != "2" {
		t.Errorf("a=%q b=%q error %v", a, b, err)
	}
}

func TestStringList(t *testing.T) {
	list := []string{"default"}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	listVar(fs, &list, "list", "")
	for _, test := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"default"}},
		{[]string{"--list=a, b,"}, []string{"a", "b"}},
		{[]string{"--list=a", "--list=b"}, []string{"b"}},
		{[]string{"--list="}, nil},
	} {
		if err := fs.Parse(test.args); err != nil || !slices.Equal(list, test.want) {
			t.Errorf("%v: %v, %v", test.args, list, err)
		}
	}
}

// Every flag has a help text that reads as a sentence, and no flag is defined twice.
func TestHelpTexts(t *testing.T) {
	server, apiserver, agent, kubelet := DefaultServer(), DefaultAPIServer(), DefaultAgent(), DefaultKubelet()
	controllers, scheduler, hollow := DefaultControllerManager(), DefaultScheduler(), DefaultHollow()
	why, whatIf, token, cert, image, clean := DefaultWhy(), DefaultWhatIf(), DefaultToken(), DefaultCert(), DefaultImage(), DefaultClean()
	for _, c := range []configurable{&server, &apiserver, &agent, &kubelet, &controllers, &scheduler, &hollow, &why, &whatIf, &token, &cert, &image, &clean} {
		var groups FlagGroups
		c.Flags(&groups)
		seen := map[string]bool{}
		for _, group := range groups.All() {
			for _, fs := range []*pflag.FlagSet{group.Common, group.Advanced} {
				fs.VisitAll(func(f *pflag.Flag) {
					if seen[f.Name] {
						t.Errorf("%T: --%s is defined twice", c, f.Name)
					}
					seen[f.Name] = true
					if first := f.Usage[0]; first < 'A' || first > 'Z' || !strings.HasSuffix(f.Usage, ".") {
						t.Errorf("%T: --%s: %q is not a sentence", c, f.Name, f.Usage)
					}
				})
			}
		}
	}
}
