package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// RequestHeader configures the front proxies that send users in request headers, with upstream's meanings.
type RequestHeader struct {
	// CAFile signs the certificates of front proxies. Empty: the cluster's own front-proxy CA, with the name of its client.
	CAFile       string
	AllowedNames []string
	// The headers default to X-Remote-User and so on.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraHeaderPrefixes []string
}

func defaultRequestHeader() RequestHeader {
	return RequestHeader{
		UsernameHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{headerUID},
		GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}
}

const headerUID = "X-Remote-Uid"

func (c *RequestHeader) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.CAFile, "requestheader-client-ca-file", c.CAFile,
		"Path to the CA certificates of front proxies, which may send users in request headers. Defaults to the cluster's front-proxy CA.")
	fs.StringSliceVar(&c.AllowedNames, "requestheader-allowed-names", c.AllowedNames,
		"Common names that the certificates of front proxies may have. Without names, with --requestheader-client-ca-file, any name is allowed.")
	fs.StringSliceVar(&c.UsernameHeaders, "requestheader-username-headers", c.UsernameHeaders, "Request headers for user names.")
	fs.StringSliceVar(&c.UIDHeaders, "requestheader-uid-headers", c.UIDHeaders, "Request headers for the UIDs of users.")
	fs.StringSliceVar(&c.GroupHeaders, "requestheader-group-headers", c.GroupHeaders, "Request headers for groups.")
	fs.StringSliceVar(&c.ExtraHeaderPrefixes, "requestheader-extra-headers-prefix", c.ExtraHeaderPrefixes, "Prefixes of request headers for extra fields of users.")
}

func (c *RequestHeader) validate() error {
	var errs []error
	for _, list := range []struct {
		flag   string
		values []string
	}{
		{"requestheader-username-headers", c.UsernameHeaders}, {"requestheader-group-headers", c.GroupHeaders},
		{"requestheader-extra-headers-prefix", c.ExtraHeaderPrefixes}, {"requestheader-allowed-names", c.AllowedNames},
		{"requestheader-uid-headers", c.UIDHeaders},
	} {
		if slices.ContainsFunc(list.values, func(value string) bool { return strings.TrimSpace(value) == "" }) {
			errs = append(errs, fmt.Errorf("empty value in %q", list.flag))
		}
	}
	if len(c.UIDHeaders) > 0 && !slices.ContainsFunc(c.UIDHeaders, func(name string) bool { return strings.EqualFold(name, headerUID) }) {
		errs = append(errs, errors.New("--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work"))
	}
	return errors.Join(errs...)
}
