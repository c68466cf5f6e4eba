import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

/** The studio's server in development: the page asks it for everything under /api. */
const server = 'http://127.0.0.1:8311'

export default defineConfig(({ mode }) => ({
  base: './',
  plugins: [svelte(), ...(mode === 'offline' ? [oneFile()] : [])],
  server: { proxy: { '/api': { target: server, changeOrigin: true, headers: { Origin: server } } } },
  build: {
    outDir: '../src/cutaway/studio/page',
    emptyOutDir: mode !== 'offline', // the second build adds its file to the first one's
    target: 'es2022',
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    reportCompressedSize: false,
    rolldownOptions: mode === 'offline' ? { output: { codeSplitting: false } } : {},
  },
}))

/** Everything in offline.html, which is opened from disk: scripts and styles are written into the page. */
function oneFile(): Plugin {
  return {
    name: 'one-file',
    enforce: 'post',
    generateBundle(_, bundle) {
      const page = bundle['index.html']
      if (page?.type !== 'asset') throw new Error('the build made no index.html')
      let html = String(page.source)
      for (const [file, made] of Object.entries(bundle)) {
        if (made.type === 'chunk') {
          const code = made.code.replaceAll('</script', '<\\/script').replaceAll('<!--', '<\\!--')
          const tag = `<script type="module">${code}</script>`
          // At the end, after the data it reads.
          html = html.replace(tagOf('script', file), '').replace('</body>', () => `${tag}\n  </body>`)
        } else if (file.endsWith('.css')) {
          html = html.replace(tagOf('link', file), () => `<style>${String(made.source)}</style>`)
        }
        delete bundle[file]
      }
      this.emitFile({ type: 'asset', fileName: 'offline.html', source: html })
    },
  }
}

function tagOf(tag: 'script' | 'link', file: string): RegExp {
  const name = file.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')
  return new RegExp(`<${tag}[^>]*${name}[^>]*>${tag === 'script' ? '</script>' : ''}`)
}
