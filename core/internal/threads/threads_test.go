package threads

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbersOfTheEnvironment(t *testing.T) {
	for text, n := range map[string]int{
		"1": 1, " 4 ": 4, "65536": Max, "+2": 2, "": 0, "0": 0, "-1": 0, "65537": 0, "99999999999999999999": 0, "two": 0, "1.5": 0, "4,2": 0,
		"0x2": 0, "\u0663": 0, ";": 0, ",": 0,
	} {
		require.Equal(t, n, parseThreads(text), text)
	}
	require.Equal(t, 4, parseThreads(firstLevel("4,2")))
	require.Equal(t, 4, parseThreads(firstLevel("4")))
	require.Zero(t, parseThreads(firstLevel(",2")))
}

// tree makes files below a folder.
func tree(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o644))
	}
	return root
}

const (
	mount2      = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
	mount1      = "33 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct"
	mountMemory = "34 24 0:30 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory"
)

func TestQuotas(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		limit int
	}{
		"no files": {nil, 0},
		"version 2, a fraction": {map[string]string{
			"proc/self/cgroup": "0::/a", "proc/self/mountinfo": mount2,
			"sys/fs/cgroup/a/cpu.max": "150000 100000"}, 2},
		"version 2, less than one": {map[string]string{
			"proc/self/cgroup": "0::/a", "proc/self/mountinfo": mount2,
			"sys/fs/cgroup/a/cpu.max": "1000 100000"}, 1},
		"version 2, no limit": {map[string]string{
			"proc/self/cgroup": "0::/a", "proc/self/mountinfo": mount2,
			"sys/fs/cgroup/a/cpu.max": "max 100000"}, 0},
		"version 2, the outer one is smaller": {map[string]string{
			"proc/self/cgroup": "0::/a/b/c", "proc/self/mountinfo": mount2, "sys/fs/cgroup/a/cpu.max": "200000 100000",
			"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/b/c/cpu.max": "800000 100000"}, 2},
		"version 2, the inner one is smaller": {map[string]string{
			"proc/self/cgroup": "0::/a/b", "proc/self/mountinfo": mount2, "sys/fs/cgroup/a/cpu.max": "800000 100000",
			"sys/fs/cgroup/a/b/cpu.max": "300000 100000"}, 3},
		"version 2, a namespace": {map[string]string{
			"proc/self/cgroup": "0::/", "proc/self/mountinfo": mount2, "sys/fs/cgroup/cpu.max": "400000 200000"}, 2},
		"version 2, outside its namespace": {map[string]string{
			"proc/self/cgroup": "0::/../other", "proc/self/mountinfo": mount2, "sys/fs/cgroup/cpu.max": "500000 100000"}, 5},
		"version 1": {map[string]string{
			"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/a/b\n0::/", "proc/self/mountinfo": mountMemory + "\n" + mount1,
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
			"sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000"}, 3},
		"version 1, a container without a namespace": {map[string]string{
			"proc/self/cgroup":                           "3:cpu,cpuacct:/docker/1234",
			"proc/self/mountinfo":                        strings.Replace(mount1, " / ", " /docker/1234 ", 1),
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100001", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"}, 2},
		"version 1, the controller is not cpu": {map[string]string{
			"proc/self/cgroup": "3:cpuset:/a", "proc/self/mountinfo": strings.ReplaceAll(mount1, "cpu,cpuacct", "cpuset"),
			"sys/fs/cgroup/cpuset/a/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpuset/a/cpu.cfs_period_us": "100000"}, 0},
		"a mount point with a space": {map[string]string{
			"proc/self/cgroup": "0::/a", "proc/self/mountinfo": strings.Replace(mount2, "/sys/fs/cgroup", `/a\040b`, 1),
			"a b/a/cpu.max": "100000 100000"}, 1},
		"files of nonsense": {map[string]string{
			"proc/self/cgroup": "::\n0\n0::\n\x00", "proc/self/mountinfo": "- -\n" + mount2 + "\n1 - cgroup2",
			"sys/fs/cgroup/cpu.max": "many few"}, 0},
		"a period of 0": {map[string]string{
			"proc/self/cgroup": "0::/", "proc/self/mountinfo": mount2, "sys/fs/cgroup/cpu.max": "100000 0"}, 0},
	} {
		require.Equal(t, c.limit, quotaIn(tree(t, c.files)), name)
	}
}

func TestProcessors(t *testing.T) {
	require.Positive(t, processors())
	require.GreaterOrEqual(t, cgroupQuota(), 0)
}
