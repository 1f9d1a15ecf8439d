package conflict

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	ranges := []Range{
		{netip.MustParsePrefix("10.96.0.0/12"), "service-cidr"}, {netip.MustParsePrefix("10.42.0.0/16"), "cluster-cidr"},
		{netip.MustParsePrefix("fd00:42::/56"), "cluster-cidr"},
	}
	eth0 := func(text string) Network { return Network{netip.MustParsePrefix(text), "eth0", true} }
	route := func(text string) Network { return Network{netip.MustParsePrefix(text), "tun0", false} }
	for name, test := range map[string]struct {
		networks []Network
		want     string
	}{
		"other networks":                  {[]Network{eth0("192.168.1.0/24"), eth0("10.0.2.0/24"), route("172.16.0.0/12"), eth0("2001:db8::/64")}, ""},
		"the host in the service CIDR":    {[]Network{eth0("10.100.0.0/24")}, "--service-cidr: 10.96.0.0/12 overlaps with 10.100.0.0/24, the network of eth0; choose another CIDR"},
		"the host in the pod CIDR":        {[]Network{eth0("10.42.7.0/24")}, "--cluster-cidr: 10.42.0.0/16 overlaps with 10.42.7.0/24, the network of eth0"},
		"a network that contains both":    {[]Network{eth0("10.0.0.0/8")}, "--service-cidr: 10.96.0.0/12 overlaps with 10.0.0.0/8, the network of eth0; choose another CIDR\n--cluster-cidr: "},
		"a route into the service CIDR":   {[]Network{route("10.97.1.0/24")}, "--service-cidr: 10.96.0.0/12 overlaps with 10.97.1.0/24, which this host reaches through tun0"},
		"a route to the CIDR":             {[]Network{route("10.42.0.0/16")}, "--cluster-cidr: "},
		"a route to all private networks": {[]Network{route("10.0.0.0/8")}, ""},
		"a single address":                {[]Network{eth0("10.42.0.1/32")}, "--cluster-cidr: "},
		"IPv6":                            {[]Network{eth0("fd00:42:0:1::/64")}, "--cluster-cidr: fd00:42::/56 overlaps with fd00:42:0:1::/64"},
	} {
		err := Check(ranges, test.networks)
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s", name, err, test.want)
		}
	}
}
